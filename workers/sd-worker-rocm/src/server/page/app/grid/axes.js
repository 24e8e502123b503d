// What a grid can vary: how the values of an axis are read, and what each changes in the body of a job.
import { chosen, numbers, parts, sizes } from "./values.js";

const named = (name, list) =>
  (list ?? []).map((entry) => (typeof entry === "string" ? entry : (entry[name] ?? entry.name)));

// A number field of /v1/jobs.
const number = (field, label, { isWhole = false, hint, needs } = {}) => ({
  id: field,
  label,
  hint: hint ?? (isWhole ? "1-5, 10-30 (+5), 10-40 [4]" : "4, 5.5, 6-9 (+0.5), 1-7 [4]"),
  read: (text) => numbers(text, isWhole),
  set: (body, value) => {
    body[field] = value;
  },
  refusal: needs,
});

const choice = (field, label, choices) => ({
  id: field,
  label,
  choices,
  hint: "names with commas between them",
  read: (text) => chosen(text, choices),
  set: (body, value) => {
    body[field] = value;
  },
});

const hasPicture = (body) => (body.input_image || body.init_image ? null : "strength needs a picture to start from");

// Replaces the first of the values by each of them, in both prompts.
const searchAndReplace = {
  id: "prompt_sr",
  label: "Prompt: search and replace",
  name: (value) => value || "(nothing)",
  hint: 'the first is searched for, each stands in its place: cat, dog, "big, old dog"',
  read: parts,
  refusal: (body, [search]) =>
    [body.prompt, body.negative_prompt].some((text) => text?.includes(search))
      ? null
      : `neither prompt has “${search}”, which is the first value and searched for`,
  set: (body, value, [search]) => {
    for (const field of ["prompt", "negative_prompt"]) {
      if (body[field]) body[field] = body[field].replaceAll(search, () => value);
    }
  },
};

const size = {
  id: "size",
  label: "Size",
  hint: "512x512, 768x512",
  read: sizes,
  name: ([width, height]) => `${width} × ${height}`,
  set: (body, [width, height]) => Object.assign(body, { width, height }),
};

const LORA = /<lora:([^:<>]+):([^<>]*)>/g;

// Names of the LoRAs of a body, those in its prompt included.
const lorasOf = (body) => [
  ...new Set([
    ...(body.loras ?? []).map(({ path }) => path),
    ...[...(body.prompt ?? "").matchAll(LORA)].map(([, name]) => name),
  ]),
];

const loraStrength = (name) => ({
  id: `lora:${name}`,
  label: `LoRA strength: ${name}`,
  name: (value) => `${name}: ${value}`,
  hint: "0-1 (+0.25)",
  read: (text) => numbers(text, false),
  refusal: (body) => (lorasOf(body).includes(name) ? null : `the request has no LoRA ${name} any more`),
  set: (body, value) => {
    body.loras = body.loras?.map((lora) => (lora.path === name ? { ...lora, strength: value } : lora));
    body.prompt = body.prompt?.replace(LORA, (whole, found) => (found === name ? `<lora:${name}:${value}>` : whole));
  },
});

// A number of one of the units of a request: its ControlNets, its IP-Adapters.
const unit = (list, what, field) => (_, at) => ({
  id: `${list}:${at}`,
  label: `${what} ${at + 1}: ${field}`,
  hint: "0.5-1 (+0.25)",
  read: (text) => numbers(text, false),
  refusal: (body) => (body[list]?.[at] ? null : `the request has no ${what} ${at + 1} any more`),
  set: (body, value) => {
    body[list] = body[list].map((each, i) => (i === at ? { ...each, [field]: value } : each));
  },
});

// A number of the second pass.
const highres = (field, label, isWhole = false) => ({
  id: `highres:${field}`,
  label: `Highres fix: ${label}`,
  hint: isWhole ? "10-30 (+10)" : "0.3-0.7 (+0.2)",
  read: (text) => numbers(text, isWhole),
  refusal: (body) => (body.highres ? null : "the request has no highres fix any more"),
  set: (body, value) => {
    body.highres = { ...body.highres, [field]: value };
  },
});

const NAME = /^[a-z][a-z0-9_]{0,63}$/;

// Any field of /v1/jobs by its name: numbers, true and false are such, all else is text.
const otherField = {
  id: "other",
  label: "Any field of a job",
  hint: "eta: 0, 0.5, 1",
  read: (text) => {
    const at = text.indexOf(":");
    const field = text.slice(0, at).trim();
    if (at < 0 || !NAME.test(field))
      throw new Error("The name of a field of /v1/jobs comes first, then a colon: eta: 0, 0.5, 1");
    const list = text.slice(at + 1);
    try {
      return numbers(list, false).map((value) => [field, value]);
    } catch {
      const words = { true: true, false: false };
      return parts(list).map((value) => [field, words[value] ?? value]);
    }
  },
  name: ([field, value]) => `${field}: ${value}`,
  set: (body, [field, value]) => {
    body[field] = value;
  },
};

// What can be varied, by what the server has and what is being asked for.
export const axes = ({ choices, models, fields }) => [
  number("steps", "Steps", { isWhole: true }),
  number("guidance_scale", "Guidance"),
  number("seed", "Seed", { isWhole: true, hint: "1, 2, 100-103" }),
  choice("sampler", "Sampler", named("name", choices?.samplers)),
  choice("schedule", "Schedule", ["Automatic", ...named("name", choices?.schedules)]),
  searchAndReplace,
  number("strength", "Strength", { hint: "0.3-0.9 (+0.2)", needs: hasPicture }),
  size,
  number("width", "Width", { isWhole: true, hint: "512-768 (+64)" }),
  number("height", "Height", { isWhole: true, hint: "512-768 (+64)" }),
  ...(models?.length > 1 ? [choice("model", "Model", models)] : []),
  ...lorasOf(fields).map(loraStrength),
  ...(fields.controls ?? []).map(unit("controls", "ControlNet", "weight")),
  ...(fields.ip_adapters ?? []).map(unit("ip_adapters", "IP-Adapter", "strength")),
  ...(fields.highres
    ? [highres("scale", "scale"), highres("strength", "strength"), highres("steps", "steps", true)]
    : []),
  number("variation", "Variation", { hint: "0-0.4 (+0.1)" }),
  number("clip_skip", "CLIP layers left out", { isWhole: true, hint: "0-2" }),
  number("eta", "Noise added (eta)", { hint: "0-1 (+0.5)" }),
  number("guidance_rescale", "Guidance rescale", { hint: "0-1 (+0.25)" }),
  otherField,
];

// How a value is written beside the pictures.
export const nameOf = (axis, value) => (axis.name ? axis.name(value) : `${axis.label}: ${value}`);
