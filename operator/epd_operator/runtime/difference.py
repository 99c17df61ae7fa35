"""Whether an object in the cluster still is what we rendered, without asking the API server.

The tricky idea: `metadata.managedFields` tells which fields our last apply set, and the API server takes a field away
from us when anybody else changes its value. So "nothing to do" means three things at once: everything rendered is ours,
everything ours is still rendered (otherwise a field was dropped from the plan and must be removed), and the values are
equal. The same tree also tells atomic lists from lists with keys, so no schema is needed. Defaults that the server adds
are in no manager's set and never count. Hence no hash annotation on the children.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from epd_operator.api import quantity

IDENTITY: Final = frozenset({"apiVersion", "kind"})
METADATA_IDENTITY: Final = frozenset({"name", "namespace", "uid", "resourceVersion", "managedFields"})
QUANTITIES: Final = frozenset({"requests", "limits", "hard", "sizeLimit", "storage", "divisor"})
"""Fields, or parents of fields, whose text the server rewrites to the shortest form."""

Owned = Mapping[str, Any]


def owned(obj: Mapping[str, Any], manager: str, subresource: str = "") -> str | None:
    """The fields that `manager` applied, as compact JSON, or None when it applied none.

    Kept as text because the parsed tree takes ten times the memory, and is needed only when something changed.
    """
    for entry in obj.get("metadata", {}).get("managedFields") or ():
        if (
            entry.get("manager") == manager
            and entry.get("operation") == "Apply"
            and entry.get("subresource", "") == subresource
        ):
            return json.dumps(entry.get("fieldsV1") or {}, separators=(",", ":"))
    return None


def differs(rendered: Mapping[str, Any], live: Mapping[str, Any], fields: str | None) -> bool:
    """True when applying `rendered` could change `live`.

    Args:
        rendered: The object as planned.
        live: The object as stored, defaults included.
        fields: `owned` of the stored object.
    """
    if fields is None:
        return True
    tree = json.loads(fields)
    for key in (*rendered, *(name[2:] for name in tree if name.startswith("f:"))):
        if key in IDENTITY:
            continue
        wanted, node = rendered.get(key), tree.get(f"f:{key}")
        if key == "metadata":
            wanted = {k: v for k, v in (wanted or {}).items() if k not in METADATA_IDENTITY}
            if not wanted and node is None:
                continue
        if _differs(wanted, live.get(key), node, key, ""):
            return True
    return False


def view(rendered: Any, live: Any) -> Any:
    """The part of `live` that `rendered` speaks about; lists whole."""
    if isinstance(rendered, Mapping) and isinstance(live, Mapping):
        return {key: view(value, live.get(key)) for key, value in rendered.items() if key != "managedFields"}
    return live


def digest(value: Any) -> str:
    """A short stable name for any JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def _differs(wanted: Any, live: Any, node: Owned | None, key: str, parent: str) -> bool:
    if node is None and isinstance(wanted, list | tuple | Mapping) and not wanted:
        return bool(live)  # the API server records no owner of a set without items
    if wanted is None or node is None:
        return wanted is not None or node is not None
    if not any(name != "." for name in node):  # a leaf: a scalar, or a map or list that is set as a whole
        return _value_differs(wanted, live, key, parent)
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        return _map_differs(wanted, live, node, key)
    if isinstance(wanted, list | tuple) and isinstance(live, list | tuple):
        return _list_differs(wanted, live, node, key)
    return True


def _map_differs(wanted: Mapping[str, Any], live: Mapping[str, Any], node: Owned, key: str) -> bool:
    stale = any(name.startswith("f:") and wanted.get(name[2:]) is None for name in node)
    return stale or any(
        _differs(value, live.get(name), node.get(f"f:{name}"), name, key)
        for name, value in wanted.items()
        if value is not None
    )


def _list_differs(wanted: Sequence[Any], live: Sequence[Any], node: Owned, key: str) -> bool:
    keyed = {name: json.loads(name[2:]) for name in node if name.startswith("k:")}
    if not keyed:  # a set of scalars
        ours = [json.loads(name[2:]) for name in node if name.startswith("v:")]
        return sorted(map(repr, ours)) != sorted(map(repr, wanted)) or any(item not in live for item in wanted)
    free = dict(keyed)
    for item in wanted:
        name = next((name for name, keys in free.items() if _has_keys(item, keys)), None)
        if name is None:
            return True
        keys = free.pop(name)
        stored = next((other for other in live if _has_keys(other, keys)), None)
        if stored is None or _differs(item, stored, node[name], key, ""):
            return True
    return bool(free)


def _has_keys(item: Any, keys: Mapping[str, Any]) -> bool:
    # A key that the item leaves out has been defaulted by the server, such as a port's protocol.
    return isinstance(item, Mapping) and all(key not in item or item[key] == value for key, value in keys.items())


def _value_differs(wanted: Any, live: Any, key: str, parent: str) -> bool:
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        return any(
            _value_differs(value, live.get(name), name, key) for name, value in wanted.items() if value is not None
        )
    if isinstance(wanted, list | tuple) and isinstance(live, list | tuple):
        return len(wanted) != len(live) or any(
            _value_differs(one, other, key, parent) for one, other in zip(wanted, live, strict=True)
        )
    if wanted == live:
        return isinstance(wanted, bool) != isinstance(live, bool)
    if QUANTITIES & {key, parent}:
        amount = quantity.parse(wanted)
        return amount is None or amount != quantity.parse(live)
    return not (not wanted and live is None and wanted != 0 and wanted is not False)
