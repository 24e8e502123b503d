//! Chat messages to prompt text, by the template that the model file carries.

use minijinja::syntax::SyntaxConfig;
use minijinja::{context, Environment, ErrorKind, UndefinedBehavior, Value};
use worker::{Error, Result};

/// Steps that a template may take: thousands of times what real ones need, a second at most.
const TEMPLATE_FUEL: u64 = 10_000_000;
/// The template's name in error messages.
const NAME: &str = "tokenizer.chat_template";

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions for the whole chat.
    System,
    /// The human.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The name that templates know.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One message of a chat.
#[derive(Debug, Clone)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
        }
    }
}

/// A compiled chat template in the dialect of Hugging Face's transformers: Jinja with trimmed blocks, Python's
/// string methods, and `raise_exception`.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the spellings of the model's special tokens.
    ///
    /// # Errors
    /// [`Error::Usage`] with the template's line for a syntax error.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self> {
        let mut environment = Environment::new();
        let broken = |e| Error::Usage(format!("the model's chat template is broken: {e}"));
        environment.set_syntax(
            SyntaxConfig::builder()
                .trim_blocks(true)
                .lstrip_blocks(true)
                .build()
                .map_err(broken)?,
        );
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_fuel(Some(TEMPLATE_FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| {
            Err::<String, _>(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .add_template_owned(NAME, source.to_string())
            .map_err(broken)?;
        Ok(Self {
            environment,
            bos: bos.unwrap_or_default().to_string(),
            eos: eos.unwrap_or_default().to_string(),
        })
    }

    /// The prompt for a chat, up to where the assistant is to speak.
    ///
    /// # Errors
    /// [`Error::Usage`] if the template refuses the messages or fails.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|m| context! { role => m.role.as_str(), content => m.content.as_str() })
            .collect();
        let context = context! {
            messages,
            add_generation_prompt => true,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        };
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(context))
            .map_err(|e| Error::Usage(format!("the model's chat template failed: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &[Message]) -> Result<String> {
        ChatTemplate::new(source, Some("<s>"), Some("</s>"))?.render(messages)
    }

    #[test]
    fn python_methods_and_trimmed_blocks() {
        let source = "{{ bos_token }}\n{% for m in messages %}\n  {% if m['role'] == 'user' %}\n[{{ m.content.strip().upper() }}]{{ eos_token }}\n  {% endif %}\n{% endfor %}\n{% if add_generation_prompt %}>{% endif %}";
        let chat = [
            Message::new(Role::System, "x"),
            Message::new(Role::User, " hi "),
        ];
        assert_eq!(render(source, &chat).unwrap(), "<s>\n[HI]</s>\n>");
    }

    #[test]
    fn a_template_can_refuse() {
        let error = render("{{ raise_exception('roles must alternate') }}", &[]).unwrap_err();
        assert!(
            error.to_string().contains("roles must alternate"),
            "{error}"
        );
    }

    #[test]
    fn a_template_cannot_run_for_ever() {
        let source =
            "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}";
        let error = render(source, &[]).unwrap_err();
        assert!(error.to_string().contains("fuel"), "{error}");
    }

    #[test]
    fn a_broken_template_is_an_error() {
        let error = render("{% for %}", &[]).unwrap_err();
        assert!(error.to_string().contains("broken"), "{error}");
    }
}
