// The parts of the form that are lists: frames, LoRAs, ControlNets, IP-Adapters, regions, pictures to look at, depths; those
// that the model takes. Each has a node, the field that refusals name, and maybe `check()`: what is missing, in words, or null.
import { makeAdapters } from "./adapters.js";
import { makeControls } from "./controls.js";
import { makeKeyFrames } from "./key-frames.js";
import { makeDepth, makeReferences } from "./looks.js";
import { makeLoras } from "./loras.js";
import { makeRegions } from "./regions.js";

export const makeUnits = (context) => {
  const { takes, controls, loras, references, video } = context.backend.choices;
  const hasNetworks = controls.length > 0;
  return [
    video?.key_frames && makeKeyFrames(context),
    references[1] > 0 && makeReferences(context, references[1]),
    takes.depth && makeDepth(context),
    loras.length > 0 && makeLoras(context),
    takes.controls && hasNetworks && makeControls(context),
    takes.ip_adapters && hasNetworks && makeAdapters(context),
    takes.picture && makeRegions(context),
  ].filter(Boolean);
};
