//! One table of routes.

use super::Worker;
use axum::extract::DefaultBodyLimit;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{on, MethodFilter, MethodRouter};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use std::sync::Arc;

/// The schema of a body.
pub(super) type BodySchema = fn(&mut SchemaGenerator) -> Schema;

/// A path, a method, what it does, and its handler.
pub struct Route<W> {
    pub(super) path: &'static str,
    pub(super) method: Method,
    pub(super) summary: &'static str,
    /// Media type and schemas of the body; of several each gives fields.
    pub(super) body: Option<(&'static str, Vec<BodySchema>)>,
    pub(super) handler: MethodRouter<Arc<W>>,
}

impl<W: Worker> Route<W> {
    /// A route for GET.
    pub fn get<H, T>(path: &'static str, summary: &'static str, handler: H) -> Self
    where
        H: Handler<T, Arc<W>>,
        T: 'static,
    {
        Self::new(path, Method::GET, summary, on(MethodFilter::GET, handler))
    }

    /// A route for POST.
    pub fn post<H, T>(path: &'static str, summary: &'static str, handler: H) -> Self
    where
        H: Handler<T, Arc<W>>,
        T: 'static,
    {
        Self::new(path, Method::POST, summary, on(MethodFilter::POST, handler))
    }

    /// A route for DELETE.
    pub fn delete<H, T>(path: &'static str, summary: &'static str, handler: H) -> Self
    where
        H: Handler<T, Arc<W>>,
        T: 'static,
    {
        let handler = on(MethodFilter::DELETE, handler);
        Self::new(path, Method::DELETE, summary, handler)
    }

    fn new(
        path: &'static str,
        method: Method,
        summary: &'static str,
        handler: MethodRouter<Arc<W>>,
    ) -> Self {
        Self {
            path,
            method,
            summary,
            body: None,
            handler,
        }
    }

    /// Takes the fields of `T` as JSON; called again, those of another type, too.
    pub fn takes<T: JsonSchema>(self) -> Self {
        self.with_body::<T>("application/json")
    }

    /// Takes bodies of any length: the handler has a limit of its own.
    pub fn takes_any_length(mut self) -> Self {
        self.handler = self.handler.layer(DefaultBodyLimit::disable());
        self
    }

    /// Takes the fields of `T` as a form with files.
    pub fn takes_form<T: JsonSchema>(self) -> Self {
        self.with_body::<T>("multipart/form-data")
    }

    fn with_body<T: JsonSchema>(mut self, media_type: &'static str) -> Self {
        let (_, schemas) = self.body.get_or_insert((media_type, Vec::new()));
        schemas.push(|generator| generator.subschema_for::<T>());
        self
    }

    /// The path.
    pub fn path(&self) -> &'static str {
        self.path
    }

    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// What it does.
    pub fn summary(&self) -> &'static str {
        self.summary
    }

    /// Whether it takes a body that is described.
    pub fn has_body(&self) -> bool {
        self.body.is_some()
    }
}

/// A worker's routes.
pub struct Routes<W> {
    /// Those that ask for no key: probes, and what a browser loads before it can send one.
    pub public: Vec<Route<W>>,
    /// Those behind the key.
    pub protected: Vec<Route<W>>,
}

impl<W> Default for Routes<W> {
    fn default() -> Self {
        Self {
            public: Vec::new(),
            protected: Vec::new(),
        }
    }
}

impl<W> Routes<W> {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Route<W>> {
        self.public.iter().chain(&self.protected)
    }
}
