"""Records launches and device activities of NVIDIA GPUs with CUPTI, and makes rows of them.

`provider` opens a `session` for each visit: CUPTI fills buffers (`buffer`) and notes nodes of CUDA
graphs (`node`), both by callbacks in machine code. `table` reads the buffers into columns, `stray`
finds what cannot be, and `record` makes rows. `library` says whether CUPTI can be used on a
machine, `error` why CUPTI refused.

This package and `xsp_levels.library.cuda` have run on an H200 with CUDA 13.0, whose records are in
tests/data/cupti; that driver calls are recorded as a kind (`session`) has not.
"""
