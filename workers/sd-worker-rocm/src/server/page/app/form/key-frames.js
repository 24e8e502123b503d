// Pictures that are frames of a video, between its ends.
import { makeSlot } from "../slot.js";
import { makePictureList } from "./list.js";

// Its number, counted from 0.
const FRAME = { name: "frame", label: "Frame", kind: "number", min: 1, step: 1, max: (c) => c.limits.frames - 1 };

export const makeKeyFrames = (context) => {
  const { backend, request } = context;
  const { choices } = backend;
  // The middle, if nothing is said.
  const fresh = () => ({ frame: Math.max(1, Math.round(((request.fields.frames ?? choices.video.frames) - 1) / 2)) });
  return makePictureList(context, {
    param: "key_frames",
    title: "Frame",
    heading: "Frames between the ends",
    most: choices.limits.key_frames,
    addLabel: "Add a picture as a frame",
    hint: "Counted from 0: of 25 frames a second, 50 is two seconds in.",
    place: "key_frame",
    named: (number) => `Frame ${number} between the ends`,
    fresh,
    render,
  });
};

const render = (entry) => {
  const slot = makeSlot("Picture", (blob) => {
    if (blob !== (entry.get().image ?? null)) entry.change({ image: blob });
  });
  if (entry.get().image) slot.set(entry.get().image);
  return [entry.row(FRAME), slot.node];
};
