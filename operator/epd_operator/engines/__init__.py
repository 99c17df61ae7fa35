"""What each engine version accepts and needs, as data.

The tricky idea: nothing downstream asks which engine runs. A `Profile` answers every question that differs between
engines (flags, command line, ports, probes, defaults), so the plan for a toy CPU server and for a GPU server is the
same code. A version that has no profile is answered with `UnknownProfile`, a value, because a wish that cannot be met
yet is a normal answer and not an error.
"""

from epd_operator.engines.catalogue import lookup
from epd_operator.engines.profile import Context, Port, Profile, UnknownProfile

__all__ = ["Context", "Port", "Profile", "UnknownProfile", "lookup"]
