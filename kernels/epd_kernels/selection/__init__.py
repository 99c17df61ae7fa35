"""Scores, candidate blocks and best entries as one operation (`select_entries`).

Callers use `epd_kernels.selection.reference.select_entries` or `epd_kernels.selection.launch.select_entries`; the
steps it is made of are `epd_kernels.index_scores`, `epd_kernels.candidate_blocks` and `epd_kernels.top_entries`.
"""
