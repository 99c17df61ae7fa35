"""What each engine version accepts and needs, as data.

The tricky idea: nothing downstream asks which engine runs. A `Profile` answers every question that differs between
engines (flags, command line, ports, probes, defaults), so the plan for a toy CPU server and for a GPU server is the
same code. An engine that the API knows but this release has no profile for is answered with `UnknownProfile`, a value,
because "not yet" is a normal answer and not an error.
"""

from epd_operator.engines.catalogue import lookup
from epd_operator.engines.profile import ArgSpec, Context, Port, Profile, UnknownProfile

__all__ = ["ArgSpec", "Context", "Port", "Profile", "UnknownProfile", "lookup"]
