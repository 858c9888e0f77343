//! Errors of commands: one message with its causes and a hint, and an exit code for scripts.

use std::fmt;

use super::similar::Missing;

/// Error of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    message: String,
    causes: Vec<String>,
    hint: Option<String>,
    code: u8,
    busy: bool,
    missing: Option<Box<Missing>>,
}

impl CliError {
    /// An ordinary failure: exit code 1.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            causes: Vec::new(),
            hint: None,
            code: 1,
            busy: false,
            missing: None,
        }
    }

    /// An error with its chain of causes: exit code 1.
    pub fn of(error: &dyn std::error::Error) -> Self {
        let mut chained = Self::new(error.to_string());
        let mut cause = error.source();
        while let Some(next) = cause {
            chained = chained.because(next);
            cause = next.source();
        }
        chained
    }

    /// A command line error: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(message).code(2)
    }

    /// Adds a cause.
    #[must_use]
    pub fn because(mut self, cause: impl fmt::Display) -> Self {
        self.causes.push(cause.to_string());
        self
    }

    /// Adds a hint how to fix it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Replaces the exit code.
    #[must_use]
    pub fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// Marks the error as temporary.
    #[must_use]
    pub fn busy(mut self, busy: bool) -> Self {
        self.busy = busy;
        self
    }

    /// Notes the object that the agent does not know.
    #[must_use]
    pub(super) fn about(mut self, missing: Option<Missing>) -> Self {
        self.missing = missing.map(Box::new);
        self
    }

    /// The object that the agent does not know.
    pub(super) fn missing(&self) -> Option<&Missing> {
        self.missing.as_deref()
    }

    /// Whether the agent refused the request for lack of capacity.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// The message with its first cause, without the hint.
    pub fn in_one_line(&self) -> String {
        let cause = self.causes.first().map(|cause| format!(": {cause}"));
        format!("{}{}", self.message, cause.unwrap_or_default())
    }

    /// The exit code of the process.
    pub fn exit_code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        for cause in &self.causes {
            write!(f, "\n  caused by: {cause}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for CliError {}

/// Result of a command.
pub type Result<T> = std::result::Result<T, CliError>;
