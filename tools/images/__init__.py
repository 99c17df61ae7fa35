"""Container images without a container engine or an image registry: built by buildah from what package indexes serve.

The one tricky idea: an image's tag is a hash of all that goes into it, and what goes into it is read from its
Containerfile's COPY lines. So nothing is built or pushed twice, and there is no list of sources that could go stale.
"""
