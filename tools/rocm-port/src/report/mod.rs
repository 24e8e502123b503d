//! What was found, as text, JSON, SARIF or Markdown.
