//! What the conversion of one service uses and adds to: the project, remarks, documents beside the pod.

use std::cell::RefCell;
use std::fmt;

use super::Source;
use super::project::Project;
use super::tree::{Commented, Entries, find, scalar, set, set_text};
use super::words::{first_free, object_name};
use crate::spec::value::Value;

/// A document, and the pod whose file it belongs to.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) pod: String,
    pub(super) document: Value,
}

/// A name that is taken, and what it stands for.
pub(super) struct Taken {
    kind: &'static str,
    name: String,
    of: String,
}

/// What all services share.
pub(super) struct Shared<'a> {
    pub(super) project: &'a Project,
    pub(super) source: &'a Source<'a>,
    pub(super) namespace: Option<&'a str>,
    /// What is not carried over.
    pub(super) remarks: RefCell<Vec<String>>,
    /// ConfigMaps, Secrets and claims.
    pub(super) made: RefCell<Vec<Made>>,
    /// What each kind and name stands for.
    pub(super) names: RefCell<Vec<Taken>>,
}

impl Shared<'_> {
    /// Notes what is not carried over, and returns the comment for it.
    pub(super) fn lost(&self, service: &str, what: fmt::Arguments<'_>) -> String {
        let origin = self.project.origin;
        let sentence = format!("{origin}: {service}: not carried over: {what}");
        let mut remarks = self.remarks.borrow_mut();
        if !remarks.contains(&sentence) {
            remarks.push(sentence.clone());
        }
        sentence
    }

    /// The name of an object of the project. `of` is what it stands for, as `volume data`: nothing else has the name.
    pub(super) fn object(&self, kind: &'static str, of: &str, name: &str) -> String {
        let wish = match &self.project.name {
            Some(project) => object_name(&format!("{project}-{name}")),
            None => object_name(name),
        };
        self.unique(kind, of, &wish)
    }

    /// Like [`Self::object`], for a name that is its own.
    pub(super) fn named(&self, kind: &'static str, name: &str) -> String {
        self.unique(kind, &format!("={name}"), &object_name(name))
    }

    fn unique(&self, kind: &'static str, of: &str, wish: &str) -> String {
        let mut names = self.names.borrow_mut();
        let name = first_free(wish, &mut |name| {
            let mut holders = names.iter();
            let holder = holders.find(|taken| taken.kind == kind && taken.name == name);
            holder.is_none_or(|holder| holder.of == of)
        });
        let same = |taken: &Taken| taken.kind == kind && taken.name == name;
        if !names.iter().any(same) {
            names.push(Taken {
                kind,
                name: name.clone(),
                of: of.to_owned(),
            });
        }
        name
    }

    pub(super) fn metadata(&self, name: &str) -> Entries {
        let mut metadata = Entries::new();
        set_text(&mut metadata, "name", name);
        if let Some(namespace) = self.namespace {
            set_text(&mut metadata, "namespace", namespace);
        }
        metadata
    }
}

/// One service during its conversion.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) shared: &'a Shared<'a>,
    /// The service's name in the project.
    pub(super) service: &'a str,
    /// The pod that it becomes a part of.
    pub(super) pod: &'a str,
    /// The services whose containers are in that pod.
    pub(super) members: &'a [&'a str],
    /// Whether it is a step before another service: an init container, whose pod has the settings of that service.
    pub(super) is_step: bool,
}

impl Work<'_> {
    /// Notes what is not carried over, with a comment at its place.
    pub(super) fn lost(&self, place: &mut dyn Commented, what: fmt::Arguments<'_>) {
        place.comment(self.shared.lost(self.service, what));
    }

    /// Adds a document, unless another service has added it.
    pub(super) fn make(&self, kind: &'static str, name: &str, content: Entries) {
        let mut made = self.shared.made.borrow_mut();
        if made.iter().any(|m| m.kind == kind && m.name == name) {
            return;
        }
        let mut document = Entries::new();
        set_text(&mut document, "apiVersion", "v1");
        set_text(&mut document, "kind", kind);
        set(
            &mut document,
            "metadata",
            Value::Map(self.shared.metadata(name)),
        );
        document.extend(content);
        made.push(Made {
            kind,
            name: name.to_owned(),
            pod: self.pod.to_owned(),
            document: Value::Map(document),
        });
    }
}

/// A pod that containers are added to.
#[derive(Debug, Default)]
pub(super) struct Pod {
    pub(super) annotations: Entries,
    pub(super) labels: Entries,
    pub(super) spec: Entries,
    pub(super) security: Entries,
    pub(super) volumes: Vec<Value>,
    pub(super) inits: Vec<Value>,
    pub(super) containers: Vec<Value>,
}

impl Pod {
    /// The name of the volume with this source; it is added if there is none.
    pub(super) fn volume(&mut self, wish: &str, kind: &str, source: &Value) -> String {
        let same = |volume: &&Value| volume.get(kind) == Some(source) && kind != "emptyDir";
        let known = self.volumes.iter().find(same);
        if let Some(name) = known.and_then(|volume| scalar(volume, "name")) {
            return name.to_owned();
        }
        let wish = object_name(wish);
        let is_it = |volume: &Value, name: &str| scalar(volume, "name") == Some(name);
        let name = first_free(&wish, &mut |name| {
            !self.volumes.iter().any(|volume| is_it(volume, name))
        });
        let mut volume = Entries::new();
        set_text(&mut volume, "name", &name);
        set(&mut volume, kind, source.clone());
        self.volumes.push(Value::Map(volume));
        name
    }

    /// Sets a field of the pod that its containers share; another value of an earlier container stays.
    pub(super) fn share(&mut self, work: &Work<'_>, key: &str, value: Value) {
        match find(&self.spec, key) {
            None if work.is_step => {
                let what = format_args!("{key}: the pod is that of the service that waits for it");
                work.lost(&mut self.spec, what);
            }
            None => self.spec.push((key.to_owned(), value)),
            Some(old) if *old == value => {}
            Some(_) => {
                let what = format_args!("{key}: another container of the pod has set it");
                work.lost(&mut self.spec, what);
            }
        }
    }
}
