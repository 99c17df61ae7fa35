"""Makes and checks what a release consists of, up to the push, which a person does: see RELEASING.md.

The one idea: everything is made from the files that git tracks, at the time of their commit, so that whoever checks the
commit out makes the same bytes.
"""
