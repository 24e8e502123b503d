// Chats as files: export and import.
import { newId, saveFile } from "./dom.js";
import { readConversation, readMessage } from "./records.js";

const FORMAT = "llm-worker-chats";
const VERSION = 1;

// Saves chats with their messages: `[{ conversation, messages }]`.
export const exportChats = (chats, name) => {
  const list = chats.map(({ conversation, messages }) => ({ ...conversation, messages }));
  saveFile(`${name}.json`, "application/json", JSON.stringify({ format: FORMAT, version: VERSION, chats: list }, null, 1));
};

// A name for a file.
export const fileName = (title) => title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "chat";

// The chats of a file, under new names, so that nothing that is there is overwritten.
//
// Throws a sentence for the user.
export const importChats = (text) => {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("This file is no JSON.");
  }
  if (data?.format !== FORMAT || !Array.isArray(data.chats)) throw new Error("This file holds no chats of this page.");
  if (!(data.version <= VERSION)) throw new Error("This file comes from a newer version of this page.");
  return data.chats.map(renamed).filter(Boolean);
};

const renamed = (chat) => {
  const conversation = readConversation(chat);
  if (!conversation) return null;
  const id = newId();
  const names = new Map();
  const rename = (old) => {
    if (old === null) return null;
    if (!names.has(old)) names.set(old, newId());
    return names.get(old);
  };
  const messages = (Array.isArray(chat.messages) ? chat.messages : [])
    .map((message) => readMessage({ ...message, conversation: id }))
    .filter(Boolean)
    .map((message) => ({ ...message, id: rename(message.id), parent: rename(message.parent) }));
  return { conversation: { ...conversation, id, leaf: rename(conversation.leaf) }, messages };
};
