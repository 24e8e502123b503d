// The settings of a request as the form shows them: one row for each field of `/v1/jobs`.
//
// A row: `name` (the field, or `field.part`), `label`, `kind` and, of numbers, `min`, `max`, `step`, each a value or a
// function of the server's choices. `usual` gives what stands there if nothing is said, `when` whether the model has it,
// `hint` a word on it, and `slider` a slider beside the number.

const takes = (choices) => choices.takes;
const share = { kind: "number", min: 0, max: 1, step: 0.05, slider: true };
const toEight = { kind: "number", min: 0, max: 8, slider: true };
const side = {
  kind: "number",
  min: (c) => c.limits.side[0],
  max: (c) => c.limits.side[1],
  step: (c) => c.limits.side_multiple,
};
const guidance = { kind: "number", min: 0, max: (c) => Math.min(20, c.limits.guidance), step: 0.5 };
const samplers = (c) => c.samplers.map(({ name }) => name);
const schedules = (c) => ["Automatic", ...c.schedules];

const hasAttention = (c) => takes(c).attention_guidance;
const hasLayers = (c) => takes(c).layer_guidance;
const isXl = (c) => takes(c).told_sizes;

export const BASIC = [
  { name: "width", label: "Width", ...side, usual: (c) => c.defaults.width, slider: true },
  { name: "height", label: "Height", ...side, usual: (c) => c.defaults.height, slider: true },
  {
    name: "steps",
    label: "Steps",
    kind: "number",
    min: 1,
    max: (c) => c.limits.steps,
    step: 1,
    usual: (c) => c.defaults.steps,
    slider: { max: (c) => Math.min(c.limits.steps, Math.max(60, c.defaults.steps)) },
  },
  { name: "guidance_scale", label: "Guidance", ...guidance, usual: (c) => c.defaults.guidance_scale, slider: true },
  { name: "sampler", label: "Sampler", kind: "choice", options: samplers, usual: (c) => c.defaults.sampler },
  { name: "schedule", label: "Schedule", kind: "choice", options: schedules, usual: (c) => c.defaults.schedule },
  { name: "batch", label: "Batch", kind: "number", min: 1, max: (c) => c.limits.batch, step: 1, usual: () => 1 },
];

export const VIDEO = [
  {
    name: "frames",
    label: "Frames",
    kind: "number",
    min: 1,
    max: (c) => c.limits.frames,
    step: (c) => c.video.time_factor,
    usual: (c) => c.video.frames,
    slider: true,
  },
  { name: "fps", label: "Frames a second", kind: "number", min: 1, max: 120, step: 1, usual: (c) => c.video.fps },
  { name: "video_format", label: "File", kind: "choice", options: (c) => c.video_formats, usual: () => "mp4" },
  { name: "late_guidance", label: "Guidance of late steps", ...guidance, when: (c) => c.video.late },
  { name: "frame_noise", label: "Noise of given frames", ...share, placeholder: "the model's", when: (c) => c.video.frame_noise },
  {
    name: "decode_timestep",
    label: "Noise at the decoder",
    ...share,
    placeholder: "the model's",
    when: (c) => c.video.denoising_decoder,
    hint: "How much the decoder is told to take out.",
  },
  { name: "decode_noise", label: "Noise mixed in before", ...share, placeholder: "the model's", when: (c) => c.video.denoising_decoder },
];

export const EDITING = [
  { name: "strength", label: "Strength", ...share, usual: (c) => c.defaults.strength ?? 0.8, hint: "0 keeps the picture, 1 forgets it." },
  { name: "noise_multiplier", label: "Noise", kind: "number", min: 0, max: 1.5, step: 0.01, usual: () => 1 },
  { name: "resize_mode", label: "Resize", kind: "choice", options: (c) => c.resize_modes, usual: () => "stretch" },
  {
    name: "image_guidance",
    label: "Picture guidance",
    kind: "number",
    min: 1,
    max: 100,
    step: 0.1,
    usual: () => 1.5,
    when: (c) => takes(c).instructions,
  },
];

export const MASKING = [
  { name: "mask_blur", label: "Mask blur", kind: "number", min: 0, max: 256, step: 1, usual: () => 0, slider: { max: 64 } },
  { name: "mask_fill", label: "Filling", kind: "choice", options: (c) => c.mask_fills, usual: () => "original" },
  { name: "mask_invert", label: "Paint what is not masked", kind: "flag" },
  { name: "soft_mask", label: "Soft mask", kind: "flag", hint: "Grey of the mask says when a pixel begins to be painted." },
  { name: "only_masked", label: "Only masked", kind: "flag", hint: "The masked part alone is painted, in the size above." },
  { name: "mask_padding", label: "Padding", kind: "number", min: 0, max: 4096, step: 4, usual: () => 32, slider: { max: 256 } },
];

// Fields of jobs that mean nothing without a mask, and without a video.
export const OF_MASKS = [...MASKING, { name: "soft_inpainting" }];
export const OF_VIDEOS = [...VIDEO, { name: "key_frames" }];

// Sections that are folded until they are wanted. `param` is the field that refusals of the whole section name, `of` a class
// that says which panes have it.
export const SECTIONS = [
  {
    title: "Soft inpainting",
    param: "soft_inpainting",
    of: "of-mask",
    when: (c) => takes(c).picture,
    initial: () => ({ schedule_bias: 1 }),
    rows: [
      { name: "soft_inpainting.schedule_bias", label: "Schedule bias", ...toEight, step: 0.1, usual: () => 1, hint: "Below 1 the picture is kept more at the end." },
      { name: "soft_inpainting.preservation_strength", label: "Preservation", ...toEight, step: 0.05, usual: () => 0.5 },
      { name: "soft_inpainting.transition_contrast_boost", label: "Contrast boost", kind: "number", min: 1, max: 32, step: 0.5, usual: () => 4, slider: true },
      { name: "soft_inpainting.mask_influence", label: "Mask influence", ...share, usual: () => 0 },
      { name: "soft_inpainting.difference_threshold", label: "Difference", ...toEight, step: 0.25, usual: () => 0.5, hint: "What changes less keeps its pixels." },
      { name: "soft_inpainting.difference_contrast", label: "Its contrast", ...toEight, step: 0.25, usual: () => 2 },
    ],
  },
  {
    title: "Seed and variation",
    rows: [
      { name: "variation", label: "Variation", ...share, usual: () => 0 },
      { name: "variation_seed", label: "Variation seed", kind: "number", min: 0, step: 1, placeholder: "random" },
      { name: "seed_size", label: "Seed's size", kind: "sizes", hint: "Width and height of a picture whose noise is kept." },
      { name: "rng", label: "Random numbers", kind: "choice", options: () => ["philox", "torch-cpu"], usual: () => "philox" },
      { name: "step_seed_delta", label: "Step seed delta", kind: "number", min: 0, step: 1, usual: () => 0 },
    ],
  },
  {
    title: "Highres fix",
    param: "highres",
    when: (c) => takes(c).highres,
    // A section with a switch: without it nothing of it is asked for.
    initial: () => ({ scale: 2 }),
    rows: [
      { name: "highres.scale", label: "Scale", kind: "number", min: 1, max: 8, step: 0.05, usual: () => 2, slider: { max: 4 } },
      { name: "highres.width", label: "Width", ...side, placeholder: "by scale" },
      { name: "highres.height", label: "Height", ...side, placeholder: "by scale" },
      {
        name: "highres.upscaler",
        label: "Upscaler",
        kind: "choice",
        options: (c) => [...c.latent_upscalers, ...c.upscalers],
        usual: () => "Latent",
      },
      { name: "highres.strength", label: "Strength", ...share, usual: () => 0.7 },
      { name: "highres.steps", label: "Steps", kind: "number", min: 1, max: (c) => c.limits.steps, step: 1, placeholder: "the first pass's" },
      { name: "highres.sampler", label: "Sampler", kind: "choice", options: samplers, usual: () => null },
      { name: "highres.schedule", label: "Schedule", kind: "choice", options: schedules, usual: () => null },
      { name: "highres.guidance_scale", label: "Guidance", ...guidance, placeholder: "the first pass's" },
      { name: "highres.seed", label: "Seed", kind: "number", min: 0, step: 1, placeholder: "the first pass's" },
      { name: "highres.prompt", label: "Prompt", kind: "text", placeholder: "the first pass's" },
      { name: "highres.negative_prompt", label: "Negative prompt", kind: "text", placeholder: "the first pass's" },
    ],
  },
  {
    title: "Faces",
    param: "restore_faces",
    when: (c) => c.face_restorers?.length > 0,
    initial: (c) => ({ model: c.face_restorers[0] }),
    rows: [
      { name: "restore_faces.model", label: "Network", kind: "choice", options: (c) => c.face_restorers, usual: () => null },
      { name: "restore_faces.visibility", label: "Visibility", ...share, usual: () => 1 },
      { name: "restore_faces.weight", label: "Fidelity", ...share, placeholder: "CodeFormer's" },
      { name: "restore_faces.only_center", label: "Only the face in the middle", kind: "flag" },
    ],
  },
  {
    title: "Refiner",
    when: (c) => takes(c).refiner,
    rows: [{ name: "refiner_start", label: "Takes over at", ...share, usual: () => 0.8 }],
  },
  {
    title: "Guidance",
    rows: [
      { name: "true_cfg_scale", label: "True guidance", ...guidance, usual: () => 1, when: (c) => takes(c).true_guidance },
      { name: "guidance_rescale", label: "Rescale", ...share, usual: () => 0 },
      { name: "guidance_start", label: "Begins at", ...share, usual: () => 0 },
      { name: "guidance_end", label: "Ends at", ...share, usual: () => 1 },
      { name: "guidance_min_sigma", label: "Ends below sigma", kind: "number", min: 0, step: 0.1, usual: () => 0 },
      { name: "guidance_norm", label: "Most length", kind: "number", min: 0, max: 100, step: 0.5, placeholder: "any" },
      { name: "guidance_schedule", label: "By parts of the run", kind: "numbers", hint: "One number for each part: 7, 5, 3" },
      { name: "guidance_agreement", label: "Ends by agreement", kind: "number", min: 0, max: 1, step: 0.005, placeholder: "off" },
      { name: "cfg_zero", label: "CFG-Zero*", kind: "flag" },
      { name: "cfg_zero_steps", label: "CFG-Zero* empty steps", kind: "number", min: 0, step: 1, usual: () => 1 },
      { name: "apg_eta", label: "APG eta", ...share, slider: false, placeholder: "off" },
      { name: "apg_norm", label: "APG norm", kind: "number", min: 0, step: 0.5, placeholder: "off" },
      { name: "apg_momentum", label: "APG momentum", kind: "number", step: 0.05, placeholder: "off" },
      { name: "mimic_guidance", label: "Mimic guidance", ...guidance, placeholder: "off", hint: "Dynamic thresholding." },
      { name: "mimic_percentile", label: "Mimic percentile", kind: "number", min: 0, max: 1, step: 0.005, usual: () => 1 },
      { name: "pag_scale", label: "PAG scale", kind: "number", min: 0, step: 0.5, placeholder: "off", when: hasAttention },
      { name: "pag_layers", label: "PAG layers", kind: "words", placeholder: "mid", when: hasAttention },
      { name: "pag_adaptive_scale", label: "PAG fading", ...share, usual: () => 0, when: hasAttention },
      { name: "skip_layers", label: "Skip layers", kind: "numbers", placeholder: "off", when: hasLayers },
      { name: "skip_layer_guidance", label: "Skip-layer guidance", kind: "number", min: 0, step: 0.1, usual: () => 2.8, when: hasLayers },
      { name: "skip_layer_start", label: "Skip layers from", ...share, step: 0.01, usual: () => 0.01, when: hasLayers },
      { name: "skip_layer_end", label: "Skip layers to", ...share, step: 0.01, usual: () => 0.2, when: hasLayers },
    ],
  },
  {
    title: "Sampling",
    rows: [
      { name: "clip_skip", label: "Clip skip", kind: "number", min: 0, max: 12, step: 1, usual: () => 0 },
      { name: "eta", label: "Eta", ...share, slider: false, placeholder: "the sampler's" },
      { name: "schedule_rho", label: "Rho", kind: "number", min: 0.1, max: 100, step: 0.1, placeholder: "the schedule's" },
      { name: "schedule_min_sigma", label: "Least sigma", kind: "number", min: 0, step: 0.001, placeholder: "the model's" },
      { name: "schedule_max_sigma", label: "Most sigma", kind: "number", min: 0, step: 0.1, placeholder: "the model's" },
      { name: "schedule_alpha", label: "Beta schedule alpha", kind: "number", min: 0.05, max: 20, step: 0.05, usual: () => 0.6 },
      { name: "schedule_beta", label: "Beta schedule beta", kind: "number", min: 0.05, max: 20, step: 0.05, usual: () => 0.6 },
      { name: "sigmas", label: "Sigmas", kind: "numbers", placeholder: "the schedule's" },
      { name: "timesteps", label: "Time steps", kind: "numbers", placeholder: "the schedule's" },
      { name: "s_churn", label: "Churn", kind: "number", min: 0, step: 1, usual: () => 0 },
      { name: "s_tmin", label: "Churn from sigma", kind: "number", min: 0, step: 0.1, usual: () => 0 },
      { name: "s_tmax", label: "Churn to sigma", kind: "number", min: 0, step: 0.1, placeholder: "no limit" },
      { name: "s_noise", label: "Noise", kind: "number", min: 0, max: 2, step: 0.01, usual: () => 1 },
      { name: "brownian_noise", label: "Brownian noise", kind: "choice", options: () => ["true", "false"], usual: () => null, isBoolean: true, hint: "Of DPM++ SDE, 2M SDE and 3M SDE." },
      { name: "step_cache", label: "Step cache", kind: "text", placeholder: "off", hint: "deepcache:3, fbcache:0.1 or teacache:0.25: faster, another picture." },
    ],
  },
  {
    title: "Textures",
    when: hasAttention,
    rows: [
      { name: "tiling", label: "Opposite edges meet", kind: "flag" },
      { name: "tile_x", label: "From left to right only", kind: "flag" },
      { name: "tile_y", label: "From top to bottom only", kind: "flag" },
    ],
  },
  {
    title: "Reading of prompts",
    rows: [
      { name: "draw", label: "Draw {a|b} and __names__", kind: "choice", options: () => ["no", "random", "all"], usual: () => "no" },
      { name: "scheduled_prompts", label: "[a:b:0.5] and AND", kind: "choice", options: () => ["true", "false"], usual: () => "true", isBoolean: true },
      { name: "prompt_weights", label: "(weights:1.2)", kind: "choice", options: () => ["true", "false"], usual: () => null, isBoolean: true },
    ],
  },
  {
    title: "What the model is told of sizes",
    param: "original_size",
    when: isXl,
    rows: [
      { name: "original_size", label: "Original size", kind: "sizes" },
      { name: "target_size", label: "Target size", kind: "sizes" },
      { name: "crop", label: "Crop (left, top)", kind: "sizes" },
      { name: "aesthetic_score", label: "Aesthetic score", kind: "number", min: 0, max: 10, step: 0.5, usual: () => 6, when: (c) => takes(c).refiner },
      { name: "negative_aesthetic_score", label: "Negative score", kind: "number", min: 0, max: 10, step: 0.5, usual: () => 2.5, when: (c) => takes(c).refiner },
    ],
  },
];
