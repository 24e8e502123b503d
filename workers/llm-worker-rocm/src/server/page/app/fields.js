// The settings of a chat: one line each, for the form, for what is sent, and for what the server refuses.
//
// Kinds: number, integer, choice, list (a text each line), text, json. `isOwn` is sent otherwise than by its name.

const number = (name, label, step, hint, more = {}) => ({ name, label, kind: "number", step, hint, ...more });
const integer = (name, label, hint, more = {}) => ({ name, label, kind: "integer", step: 1, hint, ...more });

export const GROUPS = [
  {
    id: "chat",
    label: "Chat",
    fields: [
      { name: "system", label: "System message", kind: "text", rows: 5, hint: "What the model is told before the chat.", isOwn: true },
      {
        name: "enable_thinking",
        label: "Thinking",
        kind: "choice",
        options: [["", "As the model does"], ["true", "On"], ["false", "Off"]],
        hint: "For models that can answer with and without thoughts.",
      },
      integer("max_tokens", "Most tokens", "Of an answer; empty is as many as the context takes.", { min: 1 }),
      { name: "stop", label: "Stop texts", kind: "list", rows: 2, hint: "One a line; an answer ends before them." },
      integer("seed", "Seed", "The same seed gives the same answer; empty is random.", { min: 0 }),
      integer("timeout_ms", "Time limit", "Milliseconds.", { min: 1 }),
    ],
  },
  {
    id: "sampling",
    label: "Sampling",
    fields: [
      number("temperature", "Temperature", 0.05, "0 always takes the most likely token; higher is more varied.", { min: 0 }),
      integer("top_k", "Top K", "Only so many of the most likely tokens; 0 is off.", { min: 0 }),
      number("top_p", "Top P", 0.01, "Only the most likely tokens that reach this probability together; 1 is off.", { min: 0, max: 1 }),
      number("min_p", "Min P", 0.01, "Only tokens at least this fraction as likely as the first; 0 is off.", { min: 0, max: 1 }),
      number("typical_p", "Typical P", 0.01, "Only tokens of about the expected surprise; 1 is off.", { min: 0, max: 1 }),
      number("top_n_sigma", "Top n sigma", 0.1, "Only tokens so many deviations below the best; 0 is off."),
      number("dynatemp_range", "Dynamic temperature, range", 0.05, "Up and down as the model is less or more sure; 0 is off.", { min: 0 }),
      number("dynatemp_exponent", "Dynamic temperature, exponent", 0.1, "How strongly.", { min: 0 }),
      number("xtc_probability", "XTC probability", 0.05, "How often likely tokens are left out but the last of them; 0 is off.", { min: 0, max: 1 }),
      number("xtc_threshold", "XTC threshold", 0.01, "The probability that counts as likely for that.", { min: 0, max: 1 }),
      {
        name: "mirostat",
        label: "Mirostat",
        kind: "choice",
        options: [["", "As the server has it"], ["0", "Off"], ["1", "Version 1"], ["2", "Version 2"]],
        isNumber: true,
        hint: "Keeps the surprise level, in place of most samplers.",
      },
      number("mirostat_tau", "Mirostat tau", 0.1, "The surprise aimed at, in bits.", { min: 0 }),
      number("mirostat_eta", "Mirostat eta", 0.01, "How fast it learns.", { min: 0 }),
      number("adaptive_target", "Adaptive-p target", 0.05, "The probability of tokens that is aimed at; below 0 is off.", { max: 1 }),
      number("adaptive_decay", "Adaptive-p decay", 0.01, "How much earlier tokens count for that.", { min: 0, max: 0.99 }),
      { name: "samplers", label: "Order of samplers", kind: "list", rows: 3, hint: "One a line; those that are missing are off." },
    ],
  },
  {
    id: "penalties",
    label: "Penalties",
    fields: [
      number("repeat_penalty", "Repeat penalty", 0.01, "Makes recent tokens less likely; 1 is off.", { min: 0 }),
      integer("repeat_last_n", "Repeat, last tokens", "How many recent tokens that looks at; -1 is all.", { min: -1 }),
      number("frequency_penalty", "Frequency penalty", 0.1, "For each time that a token was generated.", { min: -2, max: 2 }),
      number("presence_penalty", "Presence penalty", 0.1, "For tokens that were generated at all.", { min: -2, max: 2 }),
      number("dry_multiplier", "DRY multiplier", 0.1, "Makes tokens less likely that go on with a repetition; 0 is off.", { min: 0 }),
      number("dry_base", "DRY base", 0.05, "How much each further token of it counts.", { min: 0 }),
      integer("dry_allowed_length", "DRY allowed length", "Repetitions up to this length are free.", { min: 0 }),
      integer("dry_penalty_last_n", "DRY, last tokens", "How many recent tokens are looked at; -1 is all.", { min: -1 }),
      { name: "dry_sequence_breakers", label: "DRY sequence breakers", kind: "list", rows: 3, hint: "One a line; no repetition goes across them." },
    ],
  },
  {
    id: "form",
    label: "Form",
    fields: [
      { name: "json_schema", label: "JSON schema", kind: "json", rows: 8, shape: "object", hint: "The answer is JSON that follows it." },
      { name: "grammar", label: "Grammar", kind: "text", rows: 8, isCode: true, hint: "Lark, or GBNF where it has a rule root ::=. Not together with a schema." },
    ],
  },
  {
    id: "tools",
    label: "Tools",
    fields: [
      { name: "tools", label: "Functions", kind: "json", rows: 14, shape: "array", hint: "A list in OpenAI's form. Calls are shown in the chat, and you give their results by hand." },
      {
        name: "tool_choice",
        label: "Choice",
        kind: "choice",
        options: [["", "The model decides"], ["required", "Always a call"], ["none", "No calls"]],
        hint: "Only sent together with functions.",
      },
      { name: "extra", label: "Further fields", kind: "json", rows: 5, shape: "object", hint: "Added to each request as they are, such as logit_bias.", isOwn: true },
    ],
  },
];

export const FIELDS = GROUPS.flatMap(({ id, fields }) => fields.map((field) => ({ ...field, group: id })));

// The name of the field that a refusal is about: the one that it names, or the one that its words begin with.
export const fieldOf = ({ message, param }) => {
  const [first] = message.toLowerCase().replaceAll("-", "_").split(/[^\w]/);
  return FIELDS.find(({ name }) => name === param)?.name ?? FIELDS.find(({ name }) => name === first)?.name ?? null;
};

const SHAPES = { array: Array.isArray, object: (value) => value !== null && typeof value === "object" && !Array.isArray(value) };

// A field's text as the value that is sent; nothing for an empty one.
//
// Throws what is wrong with it.
export const valueOf = (field, text) => {
  if (text.trim() === "") return undefined;
  if (field.kind === "json") {
    let value;
    try {
      value = JSON.parse(text);
    } catch (error) {
      throw new Error(`This is no JSON: ${error.message}`);
    }
    if (!SHAPES[field.shape](value)) throw new Error(`This is no JSON ${field.shape}.`);
    return value;
  }
  if (field.kind === "list") return text.split("\n").filter((line) => line !== "").map((line) => line.replaceAll("\\n", "\n"));
  if (field.kind === "number" || field.kind === "integer" || field.isNumber) {
    const value = Number(text);
    if (!Number.isFinite(value)) throw new Error("This is no number.");
    if (field.kind === "integer" && !Number.isInteger(value)) throw new Error("This is no whole number.");
    return value;
  }
  if (text === "true" || text === "false") return field.kind === "choice" ? text === "true" : text;
  return text;
};

// The server's own value of a field, as the form shows it.
export const defaultText = (field, defaults) => {
  const value = defaults?.[field.name];
  if (value === null || value === undefined || typeof value === "object" && !Array.isArray(value)) return "";
  if (Array.isArray(value)) return value.map((each) => String(each).replaceAll("\n", "\\n")).join("\n");
  return typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value);
};
