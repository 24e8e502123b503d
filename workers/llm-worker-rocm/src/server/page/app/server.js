// Requests to the server that this page came from.
import { session } from "./small-store.js";

// What the server refuses: its words, and the field that it names.
export class ServerError extends Error {
  constructor(message, { status = 0, param = null } = {}) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

export const key = () => session.get("key") ?? "";
export const setKey = (value) => session.set("key", value || null);

const headers = (hasBody) => ({
  ...(hasBody && { "Content-Type": "application/json" }),
  ...(key() && { Authorization: `Bearer ${key()}` }),
});

const failure = async (response) => {
  let message = `The server answers ${response.status} ${response.statusText}`.trim();
  let param = null;
  try {
    const { error } = await response.json();
    message = error.message ?? String(error);
    param = error.param ?? null;
  } catch {
    // Not from our server: the status has to do.
  }
  return new ServerError(message, { status: response.status, param });
};

const request = async (path, options) => {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer.");
  }
  if (!response.ok) throw await failure(response);
  return response;
};

export const get = async (path, signal) => (await request(path, { headers: headers(false), signal })).json();

export const post = (path, body, signal) =>
  request(path, { method: "POST", headers: headers(true), body: JSON.stringify(body), signal });

// The data of server-sent events.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      const frames = text.split(/\r?\n\r?\n/);
      text = frames.pop();
      for (const frame of frames) {
        const data = frame.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (data.length) yield data.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// What a server of llama.cpp's kind says of itself, in one form.
const readProps = (props) => {
  const settings = props.default_generation_settings ?? {};
  return {
    context: props.n_ctx ?? settings.n_ctx ?? null,
    defaults: { ...settings, ...settings.params },
    reasoning: props.reasoning ?? null,
    modalities: props.modalities ?? null,
  };
};

const of = (model) => (model ? `?model=${encodeURIComponent(model)}` : "");

// What a model is set to; null is the only one.
export const props = async (model) => readProps(await get(`props${of(model)}`));

// The models that answer chats: adapters, which have a parent, are chosen by name elsewhere.
export const models = async () => {
  const { data } = await get("v1/models");
  return data
    .filter(({ parent }) => !parent)
    .map((model) => ({
      id: model.id,
      state: model.status?.value ?? model.state ?? null,
      context: model.text?.n_ctx ?? model.max_model_len ?? model.meta?.n_ctx ?? null,
      isChat: model.text !== null,
    }));
};

export const adapters = async (model) => {
  const list = await get(`lora-adapters${of(model)}`);
  return Array.isArray(list) ? list.map(({ id, name, path, scale }) => ({ id, name: name ?? path, scale })) : [];
};

// `/health`, which also answers while a model loads.
export const health = async () => {
  const response = await fetch("health");
  return { isOk: response.ok, ...(await response.json()) };
};
