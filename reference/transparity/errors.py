"""What a user's mistake is answered with: one sentence, never a framework's traceback."""


class TransparityError(ValueError):
    """Says what was given, where, what was expected, and what to do."""


class ConfigError(TransparityError):
    """A field of a configuration is impossible."""


class ParameterError(TransparityError):
    """A parameter is missing, extra, misshapen or not a finite float."""


class InputError(TransparityError):
    """Tokens do not fit the configuration."""


class BackendError(TransparityError):
    """A backend was asked for something that it does not offer."""
