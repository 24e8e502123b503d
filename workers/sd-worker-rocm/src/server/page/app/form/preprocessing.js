// Preprocessors: their thresholds as settings, and what they make of a picture.
import { toBase64 } from "../pictures.js";
import { post } from "../server.js";
import { makeField } from "./field.js";

// Rows for the thresholds of an entry's preprocessor; `thresholds` of the entry is the list of all of them.
export const thresholdRows = (entry, choices) => {
  const known = choices.preprocessors.find(({ name }) => name === entry.get().preprocessor)?.thresholds ?? [];
  return known.map(({ name, value, min, max }, index) => {
    const row = { name: "thresholds", label: name, kind: "number", min, max, step: (max - min) / 100 < 1 ? 1 : Math.round((max - min) / 100), usual: () => value, slider: true };
    const set = (number) => {
      const values = known.map((each, i) => entry.get().thresholds?.[i] ?? each.value);
      values[index] = number ?? value;
      entry.change({ thresholds: values });
    };
    return makeField(row, choices, { get: () => entry.get().thresholds?.[index], set }).node;
  });
};

// The picture that a preprocessor makes, in base64.
export const preprocess = async (blob, { preprocessor, thresholds, resolution }) => {
  const body = {
    controlnet_module: preprocessor,
    controlnet_images: [await toBase64(blob)],
    ...(thresholds?.[0] !== undefined && { controlnet_threshold_a: thresholds[0] }),
    ...(thresholds?.[1] !== undefined && { controlnet_threshold_b: thresholds[1] }),
    ...(resolution && { controlnet_processor_res: resolution }),
  };
  return (await post("controlnet/detect", body)).images[0];
};
