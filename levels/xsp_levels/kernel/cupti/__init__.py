"""NVIDIA GPUs: activity records of CUPTI in; rows of launches and device activities out.

`provider` opens a `session` for each visit: CUPTI fills buffers (`buffer`) and notes nodes of CUDA
graphs (`node`), both by callbacks in machine code. `table` reads the buffers into columns,
`clock` aligns CUPTI's clock, `stray` finds what cannot be, and `record`, with `launch`, makes
rows. `library` says whether CUPTI can be used on a machine, `error` why CUPTI refused.

Neither this package nor `xsp_levels.library.cuda` has run on a GPU yet.
"""
