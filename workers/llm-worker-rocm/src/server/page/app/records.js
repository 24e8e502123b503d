// What is kept of chats, and how it is read: whatever a damaged store or a file of somebody else holds, what comes out
// has these types, or is null.
//
// Conversation: id, title, created, updated (milliseconds), leaf (the id of the message that ends what is shown),
// settings (by the names of fields.js), model (or null).
// Message: id, conversation, parent (id or null), role (user, assistant, tool), content, created, and where there are
// any: reasoning, calls ({id, name, arguments}), call (the id that a tool's result belongs to), attachments ({kind,
// name, url or text}), state (running, stopped, length, failed), error ({message, param}), figures.

const ROLES = ["user", "assistant", "tool"];
const STATES = ["running", "stopped", "length", "failed"];
const KINDS = ["picture", "sound", "text"];

const text = (value) => (typeof value === "string" ? value : "");
const name = (value) => (typeof value === "string" && value !== "" && value.length <= 200 ? value : null);
const number = (value) => (Number.isFinite(value) ? value : 0);
const object = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : null);
const list = (value) => (Array.isArray(value) ? value : []);

export const readConversation = (value) => {
  const id = name(object(value)?.id);
  if (!id) return null;
  return {
    id,
    title: text(value.title).slice(0, 200) || "Untitled",
    created: number(value.created),
    updated: number(value.updated),
    leaf: name(value.leaf),
    settings: object(value.settings) ?? {},
    model: name(value.model),
  };
};

const readCall = (value) => ({
  id: text(object(value)?.id),
  name: text(object(value)?.name),
  arguments: text(object(value)?.arguments),
});

// Pictures and sounds are data of their own kind: nothing else is ever loaded.
const URLS = { picture: /^data:image\/(?:png|jpeg|webp|gif);base64,/, sound: /^data:audio\/[\w.+-]+(?:;[\w.=+-]+)*;base64,/ };

const readAttachment = (value) => {
  const kind = object(value)?.kind;
  if (!KINDS.includes(kind)) return null;
  if (kind === "text") return { kind, name: text(value.name), text: text(value.text) };
  return URLS[kind].test(text(value.url)) ? { kind, name: text(value.name), url: value.url } : null;
};

const FIGURES = ["prompt", "cached", "promptMs", "generated", "perSecond", "total"];

const readFigures = (value) => Object.fromEntries(FIGURES.map((key) => [key, number(value[key])]));

export const readMessage = (value) => {
  const id = name(object(value)?.id);
  const conversation = name(value?.conversation);
  if (!id || !conversation || !ROLES.includes(value.role)) return null;
  const message = {
    id,
    conversation,
    parent: name(value.parent),
    role: value.role,
    content: text(value.content),
    created: number(value.created),
  };
  if (text(value.reasoning)) message.reasoning = value.reasoning;
  const calls = list(value.calls).map(readCall);
  if (calls.length) message.calls = calls;
  if (value.role === "tool") message.call = text(value.call);
  const attachments = list(value.attachments).map(readAttachment).filter(Boolean);
  if (attachments.length) message.attachments = attachments;
  if (STATES.includes(value.state)) message.state = value.state;
  if (object(value.error)) message.error = { message: text(value.error.message), param: name(value.error.param) };
  if (object(value.figures)) message.figures = readFigures(value.figures);
  if (name(value.model)) message.model = value.model;
  return message;
};
