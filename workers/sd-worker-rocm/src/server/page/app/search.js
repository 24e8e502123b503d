// Search: every word is somewhere in the texts, in whatever case.

export const matches = (query, texts) => {
  const text = texts.filter(Boolean).join("\n").toLowerCase();
  return query
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
};
