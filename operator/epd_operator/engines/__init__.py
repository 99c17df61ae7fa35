"""What each engine version accepts and needs, as data.

The tricky idea: nothing downstream asks which engine runs. A `Profile` answers every question that differs between
engines (flags, command line, ports, probes, defaults), so the plan for a toy CPU server and for a GPU server is the
same code. What an engine would refuse is data, too: rules are expressions over the values that it resolves its flags to
(`expression`, `rule`), and `validation` answers the one question that everybody asks about a spec.
"""

from epd_operator.engines.catalogue import lookup
from epd_operator.engines.profile import CommandInputs, Port, Profile

__all__ = ["CommandInputs", "Port", "Profile", "lookup"]
