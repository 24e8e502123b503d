// Weights of words, `(words:1.1)`, changed by keys: of what is selected, or of the word or LoRA around the cursor.

const STEP = 0.1;
const LORA_STEP = 0.05;

const written = (number) => String(Number(number.toFixed(2)));

// What stands between `from` and `to` is to be replaced by `text`, and `selection` to be selected then; null where
// there is no word.
export const weighted = (text, start, end, direction) => ofLora(text, start, end, direction) ?? ofWords(text, start, end, direction);

const ofLora = (text, start, end, direction) => {
  for (const match of text.matchAll(/<lora:[^:<>]+:(-?[\d.]+)/g)) {
    const to = match.index + match[0].length;
    const close = text.indexOf(">", to);
    if (start < match.index || end > (close < 0 ? to : close + 1)) continue;
    const from = to - match[1].length;
    const number = written(Number(match[1]) + direction * LORA_STEP);
    return { from, to, text: number, selection: [from, from + number.length] };
  }
  return null;
};

const ofWords = (text, start, end, direction) => {
  let [from, to] = start === end ? wordAt(text, start) : trimmed(text, start, end);
  if (from === to) return null;
  // Brackets with a weight that hold exactly this.
  const weight = /^:(-?\d*\.?\d+)\)/.exec(text.slice(to));
  const isHeld = text[from - 1] === "(" && weight;
  const old = isHeld ? Number(weight[1]) : 1;
  const next = Number((old + direction * STEP).toFixed(2));
  const words = text.slice(from, to);
  if (isHeld) {
    from -= 1;
    to += weight[0].length;
  }
  if (next === 1) return { from, to, text: words, selection: [from, from + words.length] };
  return { from, to, text: `(${words}:${written(next)})`, selection: [from + 1, from + 1 + words.length] };
};

const SEPARATORS = /[\s,.:;()[\]{}<>|]/;

const wordAt = (text, at) => {
  let from = at;
  let to = at;
  while (from > 0 && !SEPARATORS.test(text[from - 1])) from -= 1;
  while (to < text.length && !SEPARATORS.test(text[to])) to += 1;
  return [from, to];
};

const trimmed = (text, start, end) => {
  const words = text.slice(start, end);
  return [start + words.length - words.trimStart().length, end - words.length + words.trimEnd().length];
};
