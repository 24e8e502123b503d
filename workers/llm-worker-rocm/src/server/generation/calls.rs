//! Calls that an answer may have, held to the schemas of their tools.

use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::error::from_worker;
use crate::tools::{CallRules, OfferedCalls, OfferedGrammars, OutputParser};
use serde_json::Value;
use worker::http::ApiError;

/// What calls must look like, understood but not compiled.
#[derive(Debug, Clone)]
pub struct OfferedForm {
    /// All that the schemas say; then, for tools that are not declared strict, what can be followed of it.
    grammars: Vec<OfferedGrammars>,
    is_strict: bool,
    parser: OutputParser,
}

impl OfferedForm {
    /// The form of the calls that these rules allow; `None` if there are none, or none that can be held to it.
    ///
    /// # Errors
    /// 400 for a schema of a strict tool that cannot be followed.
    pub fn of(
        model: &TextModel,
        rules: &CallRules,
        parser: &OutputParser,
    ) -> Result<Option<Self>, ApiError> {
        let strict = |tool: &Value| tool.get("function").unwrap_or(tool)["strict"] == true;
        let is_strict = rules.tools.iter().any(strict);
        let mut grammars = Vec::new();
        for lenient in [false, true] {
            match model
                .format
                .offered_grammars(rules, lenient, &model.tokenizer)
            {
                Ok(offered) => grammars.extend(offered),
                Err(e) if is_strict => return Err(of_tools(&e)),
                Err(e) => tracing::debug!("calls are not held to their schemas: {e}"),
            }
            if is_strict {
                break;
            }
        }
        Ok((!grammars.is_empty()).then(|| Self {
            grammars,
            is_strict,
            parser: parser.clone(),
        }))
    }

    /// Compiles it, once it is its turn; `None` if it cannot be and no tool is strict.
    ///
    /// # Errors
    /// 400 for a schema of a strict tool that cannot be followed, 429 if too many wait to be compiled.
    pub async fn compile(
        &self,
        app: &App,
        model: &TextModel,
    ) -> Result<Option<OfferedCalls>, ApiError> {
        let compiler = match model.grammars() {
            Ok(compiler) => compiler.clone(),
            Err(e) if self.is_strict => return Err(e),
            Err(_) => return Ok(None),
        };
        let (form, tokenizer) = (self.clone(), model.tokenizer.clone());
        let visible = model.format.visible_tokens();
        let compile = move || {
            let mut failure = None;
            for offered in &form.grammars {
                let (parser, tokenizer) = (form.parser.clone(), tokenizer.clone());
                match OfferedCalls::new(&compiler, offered, parser, tokenizer, &visible) {
                    Ok(calls) => return Ok(Some(calls)),
                    Err(e) => failure = Some(e),
                }
            }
            match failure {
                Some(e) if form.is_strict => Err(of_tools(&e)),
                Some(e) => {
                    tracing::debug!("calls are not held to their schemas: {e}");
                    Ok(None)
                }
                None => Ok(None),
            }
        };
        app.compilations.run(compile).await
    }
}

fn of_tools(error: &worker::Error) -> ApiError {
    ApiError {
        param: Some("tools".to_string()),
        ..from_worker(error)
    }
}
