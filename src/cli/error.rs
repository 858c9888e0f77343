//! How does a failed command end? One message with its causes and a way out, and an exit code that scripts can use.

use std::fmt;

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    message: String,
    causes: Vec<String>,
    hint: Option<String>,
    code: u8,
    busy: bool,
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
        }
    }

    /// Any error with its causes: exit code 1.
    pub fn of(error: &dyn std::error::Error) -> Self {
        let mut told = Self::new(error.to_string());
        let mut cause = error.source();
        while let Some(next) = cause {
            told = told.because(next);
            cause = next.source();
        }
        told
    }

    /// The command was written wrongly: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(message).code(2)
    }

    /// Why.
    #[must_use]
    pub fn because(mut self, cause: impl fmt::Display) -> Self {
        self.causes.push(cause.to_string());
        self
    }

    /// How to mend it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Another exit code.
    #[must_use]
    pub fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// It may go well at another time.
    #[must_use]
    pub fn busy(mut self, busy: bool) -> Self {
        self.busy = busy;
        self
    }

    /// Whether the agent had no place for the request.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// What the process exits with.
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

/// What commands return.
pub type Result<T> = std::result::Result<T, CliError>;
