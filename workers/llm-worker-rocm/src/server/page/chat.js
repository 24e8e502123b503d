import { markdown } from "./markdown.js";

const $ = (id) => document.getElementById(id);
const HEALTH_EVERY = 1000;
// Pixels of a picture's longer side; encoders see no more of most pictures.
const MOST_SIDE = 1536;

// What stays between visits: chats in this browser, the key in this tab.
const load = (name, otherwise) => {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
};
const save = (name, value) => {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    tell("This browser has no more room for chats; delete some.", true);
  }
};

let chats = load("chats", []);
let current = null;
let running = null;
// Data URLs of the pictures that go with the next message, and sounds with their names.
let pictures = [];
let sounds = [];

const tell = (text, isError = false) => {
  $("status").textContent = text;
  $("status").classList.toggle("error", isError);
};

// The page ---------------------------------------------------------------------------------------

const element = (name, className, ...children) => {
  const node = document.createElement(name);
  node.className = className;
  node.append(...children);
  return node;
};

const image = (address) => {
  const node = element("img", "picture");
  node.src = address;
  node.alt = "picture";
  return node;
};

const player = ({ url }) => {
  const node = element("audio", "sound");
  node.src = url;
  node.controls = true;
  return node;
};

// Those of the next message; a click takes one out.
const showPictures = () => {
  const remover = (list, index, label, shown) => {
    const remove = element("button", "", shown);
    remove.type = "button";
    remove.setAttribute("aria-label", label);
    remove.addEventListener("click", () => {
      list.splice(index, 1);
      showPictures();
    });
    return remove;
  };
  $("pictures").replaceChildren(
    ...pictures.map((address, index) => remover(pictures, index, "Take this picture out", image(address))),
    ...sounds.map(({ name }, index) => remover(sounds, index, "Take this sound out", `♪ ${name}`)),
  );
};

// A file of any format that the browser knows, upright and not too large.
const dataUrl = async (file) => {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, MOST_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const isSmall = scale === 1 && file.type === "image/png";
  return canvas.toDataURL(isSmall ? "image/png" : "image/jpeg", 0.92);
};

const addPictures = async (files) => {
  for (const file of files) {
    try {
      pictures.push(await dataUrl(file));
    } catch {
      tell(`${file.name || "This"} is no picture that the browser can show.`, true);
    }
  }
  showPictures();
};

// A sound's file as it is: the server knows its format.
const addSounds = async (files) => {
  for (const file of files) {
    const reader = new FileReader();
    const read = new Promise((done) => reader.addEventListener("loadend", done));
    reader.readAsDataURL(file);
    await read;
    if (reader.result) sounds.push({ name: file.name || "sound", url: reader.result });
    else tell(`${file.name || "This"} cannot be read.`, true);
  }
  showPictures();
};

const filesIn = (transfer, kind) => [...(transfer?.files ?? [])].filter((file) => file.type.startsWith(`${kind}/`));

const showMessage = (message) => {
  const node = element("article", message.role);
  node.update = () => {
    if (message.role === "user") {
      const shown = [...(message.pictures ?? []).map(image), ...(message.sounds ?? []).map(player)];
      node.replaceChildren(...shown, message.content);
      return;
    }
    const parts = [];
    if (message.reasoning) {
      const details = element("details", "reasoning", element("summary", "", "Thoughts"), ...markdown(message.reasoning));
      details.open = node.querySelector("details")?.open ?? false;
      parts.push(details);
    }
    parts.push(...markdown(message.content));
    if (message.error) parts.push(element("p", "error", message.error));
    if (message.figures) parts.push(element("p", "figures", message.figures));
    node.replaceChildren(...parts);
  };
  node.update();
  $("messages").append(node);
  return node;
};

const showChats = () => {
  $("chats").replaceChildren(...chats.map((chat) => {
    const title = element("button", "title", chat.title);
    title.addEventListener("click", () => open(chat));
    const remove = element("button", "remove", "×");
    remove.setAttribute("aria-label", `Delete ${chat.title}`);
    remove.addEventListener("click", () => {
      chats = chats.filter((other) => other !== chat);
      save("chats", chats);
      if (current === chat) open(null);
      else showChats();
    });
    return element("div", chat === current ? "current" : "", title, remove);
  }));
};

const open = (chat) => {
  running?.abort();
  current = chat;
  $("messages").replaceChildren();
  chat?.messages.forEach(showMessage);
  $("messages").scrollTop = $("messages").scrollHeight;
  document.body.classList.remove("menu");
  tell("");
  showChats();
  $("input").focus();
};

const setRunning = (controller) => {
  running = controller;
  $("send").hidden = controller !== null;
  $("stop").hidden = controller === null;
};

// The server -------------------------------------------------------------------------------------

const headers = () => {
  const key = $("key").value;
  const common = { "Content-Type": "application/json" };
  return key ? { ...common, Authorization: `Bearer ${key}` } : common;
};

const failure = async (response) => {
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not from our server: the status has to do.
  }
  return new Error(message);
};

// The data of server-sent events.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const frames = text.split("\n\n");
    text = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").filter((line) => line.startsWith("data:"));
      if (data.length) yield data.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}

const format = (url) => url.slice("data:audio/".length, url.indexOf(";"));

const parts = (message) => [
  ...(message.pictures ?? []).map((url) => ({ type: "image_url", image_url: { url } })),
  ...(message.sounds ?? []).map(({ url }) => ({
    type: "input_audio",
    input_audio: { data: url.slice(url.indexOf(",") + 1), format: format(url) },
  })),
  { type: "text", text: message.content },
];

const request = (chat) => {
  const system = $("system").value.trim();
  const temperature = $("temperature").valueAsNumber;
  const maxTokens = $("max-tokens").valueAsNumber;
  const messages = chat.messages
    .filter(({ role, content }) => role === "user" || content)
    .map((message) => ({
      role: message.role,
      content: message.pictures || message.sounds ? parts(message) : message.content,
    }));
  return {
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    ...(Number.isFinite(temperature) && { temperature }),
    ...(Number.isFinite(maxTokens) && { max_tokens: maxTokens }),
  };
};

const speed = (tokens, seconds) => (seconds > 0 ? `${(tokens / seconds).toFixed(1)} tokens/s` : "");

const answer = async (chat) => {
  const message = { role: "assistant", content: "", reasoning: "" };
  const body = JSON.stringify(request(chat));
  chat.messages.push(message);
  const node = showMessage(message);
  const controller = new AbortController();
  setRunning(controller);

  let scheduled = false;
  let pause = 0;
  const box = $("messages");
  const update = () => {
    if (scheduled) return;
    scheduled = true;
    const show = () => {
      scheduled = false;
      const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
      const start = performance.now();
      node.update();
      // What takes long to show is shown less often: the page stays usable.
      pause = 4 * (performance.now() - start);
      if (atEnd) box.scrollTop = box.scrollHeight;
    };
    setTimeout(() => requestAnimationFrame(show), pause);
  };

  let first = 0;
  let chunks = 0;
  let complete = false;
  try {
    tell("Waiting …");
    const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body, signal: controller.signal });
    if (!response.ok) throw await failure(response);
    for await (const data of events(response)) {
      if (data === "[DONE]") {
        complete = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const [choice] = chunk.choices;
      const { content, reasoning_content: reasoning } = choice?.delta ?? {};
      if (content || reasoning) {
        first ||= performance.now();
        chunks += 1;
        message.content += content ?? "";
        message.reasoning += reasoning ?? "";
        tell(speed(chunks - 1, (performance.now() - first) / 1000));
        update();
      }
      if (chunk.timings) {
        const { prompt_n: prompt, cache_n: cached, prompt_ms: prefill, predicted_n: generated, predicted_per_second: rate } = chunk.timings;
        const end = choice.finish_reason === "length" ? ", cut off at the limit" : "";
        message.figures = `${generated} tokens, ${rate.toFixed(1)} tokens/s; prompt ${prompt + cached} tokens (${cached} cached) in ${(prefill / 1000).toFixed(2)} s${end}`;
      }
    }
    if (!complete) throw new Error("The connection ended before the answer did.");
    tell("");
  } catch (error) {
    if (controller.signal.aborted) {
      message.figures = "stopped";
      tell("Stopped.");
    } else {
      message.error = error.message;
      tell("");
    }
  }
  update();
  setRunning(null);
  save("chats", chats);
};

const health = async () => {
  let state;
  try {
    state = await (await fetch("health")).json();
  } catch {
    tell("The server does not answer.", true);
    setTimeout(health, 3 * HEALTH_EVERY);
    return;
  }
  const { name, description, fallback } = state.device;
  $("device").textContent = fallback ? `${description}: ${fallback}` : `${description} (${name})`;
  if (state.status === "healthy") {
    $("model").textContent = state.model;
    document.title = state.model;
    $("send").disabled = false;
    tell("");
    return;
  }
  $("send").disabled = true;
  const isLoading = state.status === "loading";
  tell(isLoading ? `Loading the model: ${Math.floor(state.progress * 100)} %` : state.message, !isLoading);
  setTimeout(health, HEALTH_EVERY);
};

// What the user does -----------------------------------------------------------------------------

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("input").value.trim();
  if (!(text || pictures.length || sounds.length) || running || $("send").disabled) return;
  if (!current) {
    current = { title: text.slice(0, 60) || (pictures.length ? "Picture" : "Sound"), messages: [] };
    chats.unshift(current);
    showChats();
  }
  const message = {
    role: "user",
    content: text,
    ...(pictures.length && { pictures }),
    ...(sounds.length && { sounds }),
  };
  pictures = [];
  sounds = [];
  showPictures();
  current.messages.push(message);
  showMessage(message);
  $("input").value = "";
  grow();
  $("messages").scrollTop = $("messages").scrollHeight;
  answer(current);
});

$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});

const grow = () => {
  $("input").style.height = "auto";
  $("input").style.height = `${$("input").scrollHeight + 2}px`;
};
$("input").addEventListener("input", grow);

$("input").addEventListener("paste", (event) => {
  const [seen, heard] = ["image", "audio"].map((kind) => filesIn(event.clipboardData, kind));
  if (seen.length + heard.length === 0) return;
  event.preventDefault();
  addPictures(seen);
  addSounds(heard);
});

document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  addPictures(filesIn(event.dataTransfer, "image"));
  addSounds(filesIn(event.dataTransfer, "audio"));
});

$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => open(null));
$("menu").addEventListener("click", () => document.body.classList.toggle("menu"));

const SETTINGS = ["system", "temperature", "max-tokens"];
const settings = load("settings", {});
for (const id of SETTINGS) {
  $(id).value = settings[id] ?? "";
  $(id).addEventListener("change", () => {
    settings[id] = $(id).value;
    save("settings", settings);
  });
}
$("key").value = sessionStorage.getItem("key") ?? "";
$("key").addEventListener("change", () => sessionStorage.setItem("key", $("key").value));

open(chats[0] ?? null);
health();
