"""Everything that may go wrong in the agent, by the side at fault.

AgentError
├── OperatorError          the node's operator: settings, files, permissions
│   ├── SettingsError
│   └── StateDirectoryBusyError
├── ClusterRefusedError    the scheduler serves another cluster, or an older state of this one
├── CommandRefusedError    the scheduler (or the user behind it) asked for what this node does not do
└── DeviceError            the driver or the device
    └── DriverMissingError
"""

from __future__ import annotations


class AgentError(Exception):
    """Anything that the agent raises on purpose."""


class OperatorError(AgentError):
    """The operator of this node must change something."""


class SettingsError(OperatorError):
    """A setting is unknown, malformed or contradicts another one."""


class StateDirectoryBusyError(OperatorError):
    """Another agent holds the same state directory."""


class ClusterRefusedError(AgentError):
    """This node obeys the scheduler no more; the message has the reason and the remedy."""


class CommandRefusedError(AgentError):
    """An order that is not carried out; it is answered with the code and the message.

    Attributes:
        code: UPPER_SNAKE_CASE, stable: STALE_FENCE, COMMAND_NOT_ALLOWED, OVER_CAPACITY, NO_SUCH_ATTEMPT ...
        message: the reason and the remedy.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class DeviceError(AgentError):
    """A driver call failed."""


class DriverMissingError(DeviceError):
    """There is no usable driver library on this machine."""
