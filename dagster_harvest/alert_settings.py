"""The attribute `alerts` of an outbox: where alerts are reported. No field holds a secret: a field names an environment
variable."""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from dagster_harvest.fields import Described

_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"


class SlackSettings(Described):
    """A Slack channel. Alerts are posted by Slack's web API, with the token of a bot that may write there."""

    channel: str = Field(min_length=1)
    """The channel, such as `#orders-on-call`, or its id."""
    token_variable: str = Field(pattern=_VARIABLE)
    """The environment variable that holds the bot's token."""
    api_url: str = Field(default="https://slack.com/api", pattern=r"^https?://")
    """The address of Slack's web API. Default `https://slack.com/api`."""


class WebhookSettings(Described):
    """An address that receives each alert by POST, as a JSON object with the fields of `Alert`."""

    url_variable: str = Field(pattern=_VARIABLE)
    """The environment variable that holds the URL. The URL of a webhook often contains a secret."""
    token_variable: str | None = Field(default=None, pattern=_VARIABLE)
    """The environment variable that holds a bearer token for the header `Authorization`. Default none."""


class EmailSettings(Described):
    """Addresses that receive each alert by SMTP."""

    to: Sequence[str] = Field(min_length=1)
    """The addresses of the recipients."""
    sender: str = Field(min_length=3)
    """The address of the sender."""
    host: str = "localhost"
    """The SMTP server. Default `localhost`."""
    port: int = Field(default=587, ge=1, le=65535)
    """The port of the SMTP server. Default 587."""
    encryption: Literal["starttls", "tls", "none"] = "starttls"
    """`starttls` encrypts after the greeting, `tls` from the beginning (port 465). Default `starttls`."""
    user: str | None = None
    """The user at the SMTP server. Default none: the server accepts mail without a password."""
    password_variable: str | None = Field(default=None, pattern=_VARIABLE)
    """The environment variable that holds the user's password. Default none."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if (self.user is None) != (self.password_variable is None):
            message = "user and password_variable belong together: set both or none"
            raise ValueError(message)
        if self.user is not None and self.encryption == "none":
            message = "a password is not sent without encryption: set encryption to starttls or tls"
            raise ValueError(message)
        return self


class AlertSettings(Described):
    """The destinations of alerts. Without a destination, alerts go to the log of the code location."""

    tell: str | None = Field(default=None, pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")
    """The import path of a function that takes an `Alert`, such as `acme.alerts.page`. Default none."""
    warn: bool = False
    """True if checks that fail with the severity WARN are reported too. Default false: only ERROR is reported."""
    slack: SlackSettings | None = None
    """A Slack channel. Default none."""
    webhook: WebhookSettings | None = None
    """An address that receives JSON by POST. Default none."""
    email: EmailSettings | None = None
    """Recipients of e-mail. Default none."""
