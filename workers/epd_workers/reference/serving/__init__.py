"""The HTTP face of the Reference engine, in the roles encode, prefill, decode and aggregated.

The tricky idea: a role is only a `Runner`, which turns one job into a stream of tokens. Where the tokens come from
(computed here, handed over by a prefill, or just one of them because decode makes the rest) is its affair alone, so
that parsing, formats, limits, records and draining are written once and are the same in every role.
"""
