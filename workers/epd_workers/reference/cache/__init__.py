"""What a sequence leaves behind: paged global entries, window pages, the prefix tree that shares them, their bytes.

The tricky idea: everything is addressed by the slot of a full token. The slot of a global entry is that slot divided by
its layer's ratio, so one page table and one tree serve layers of every ratio. Window pages have a table of their own
and age out sooner: a page of a prefix may have lost its windows and still serve its global entries.

Nothing in here locks: the caller runs it under one lock.
"""
