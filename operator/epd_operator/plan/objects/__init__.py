"""What exists in the cluster for a resource: one module a kind of object or a part of one."""
