"""The operations of a DeepSeek-V4.1 prefill whose decoder half runs only on the last rows, in Triton and in torch.

`load` gives them behind one interface; `warmup` compiles what serving will hit. Importing this package does not import
Triton: that happens when its kernels are asked for.
"""
