// Requests to the server that this page came from.
import { session } from "./small-store.js";

// What the server refuses: its words, and the field that it names. `status` is 0 where nothing answered.
export class ServerError extends Error {
  constructor(message, { status = 0, param = null } = {}) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

export const key = () => session.get("key") ?? "";
export const setKey = (value) => session.set("key", value || null);

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

const request = async (path, options = {}) => {
  let response;
  try {
    const headers = { ...options.headers, ...(key() && { Authorization: `Bearer ${key()}` }) };
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer.");
  }
  if (!response.ok) throw await failure(response);
  return response;
};

export const get = async (path) => (await request(path)).json();

export const post = async (path, body) => {
  const headers = { "Content-Type": "application/json" };
  const response = await request(path, { method: "POST", headers, body: JSON.stringify(body) });
  return response.json();
};

export const blob = async (path) => (await request(path)).blob();

// `/health`, which also answers while a model loads.
export const health = async () => {
  let response;
  try {
    response = await fetch("health");
  } catch {
    throw new ServerError("The server does not answer.");
  }
  return { isOk: response.ok, ...(await response.json()) };
};

// Server-sent events: `{ name, data }`.
export async function* events(path, signal) {
  const response = await request(path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error) => {
        // The connection broke: the server is asked again, as where it does not answer.
        throw error.name === "AbortError" ? error : new ServerError("The server does not answer.");
      });
      if (done) return;
      text += value;
      const frames = text.split(/\r?\n\r?\n/);
      text = frames.pop();
      for (const frame of frames) {
        let name = "message";
        let data = "";
        for (const line of frame.split(/\r?\n/)) {
          if (line.startsWith("event:")) name = line.slice(6).trim();
          if (line.startsWith("data:")) data += line.slice(5);
        }
        if (data) yield { name, data: JSON.parse(data) };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
