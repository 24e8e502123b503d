// From a chat to the body of a request.
import { FIELDS, valueOf } from "./fields.js";

// A fence that no line of the text ends.
const fence = (text) => {
  const longest = Math.max(2, ...[...text.matchAll(/`{3,}/g)].map(([ticks]) => ticks.length));
  return "`".repeat(longest + 1);
};

const file = ({ name, text }) => `${name}:\n${fence(text)}\n${text}\n${fence(text)}\n\n`;

const format = (url) => url.slice("data:audio/".length).split(/[;,]/)[0];

const part = ({ kind, url }) =>
  kind === "picture"
    ? { type: "image_url", image_url: { url } }
    : { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format: format(url) } };

const userContent = ({ content, attachments = [] }) => {
  const text = attachments.filter(({ kind }) => kind === "text").map(file).join("") + content;
  const media = attachments.filter(({ kind }) => kind !== "text").map(part);
  return media.length ? [...media, { type: "text", text }] : text;
};

const call = ({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } });

const FORMS = {
  user: (message) => ({ role: "user", content: userContent(message) }),
  tool: ({ call: id, content }) => ({ role: "tool", tool_call_id: id, content }),
  // Thoughts go back with calls only: that is where models go on with them.
  assistant: ({ content, reasoning, calls }) => ({
    role: "assistant",
    content: content || (calls ? null : ""),
    ...(calls && { tool_calls: calls.map(call) }),
    ...(calls && reasoning && { reasoning_content: reasoning }),
  }),
};

const isSaid = ({ role, content, calls }) => role !== "assistant" || content !== "" || Boolean(calls);

// The fields of a chat's settings.
//
// Throws what is wrong with one of them, with its name as `param`.
export const sampling = (settings) => {
  const fields = {};
  for (const field of FIELDS) {
    if (field.isOwn) continue;
    try {
      const value = valueOf(field, settings[field.name] ?? "");
      if (value !== undefined) fields[field.name] = value;
    } catch (error) {
      throw Object.assign(new Error(`${field.label}: ${error.message}`), { param: field.name });
    }
  }
  if (!fields.tools) delete fields.tool_choice;
  if (Array.isArray(settings.lora)) fields.lora = settings.lora;
  return fields;
};

const extra = (settings) => {
  const field = FIELDS.find(({ name }) => name === "extra");
  try {
    return valueOf(field, settings.extra ?? "") ?? {};
  } catch (error) {
    throw Object.assign(new Error(`${field.label}: ${error.message}`), { param: "extra" });
  }
};

// The body that asks for what comes after `path`; `isContinued` goes on with its last message.
export const body = ({ path, settings, model, isContinued }) => {
  const system = (settings.system ?? "").trim();
  const messages = path.filter(isSaid).map((message) => FORMS[message.role](message));
  return {
    ...(model && { model }),
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    timings_per_token: true,
    ...sampling(settings),
    // An answer that is gone on with has its thoughts behind it.
    ...(isContinued && { continue_final_message: true, add_generation_prompt: false, enable_thinking: false }),
    ...extra(settings),
  };
};
