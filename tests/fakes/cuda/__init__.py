"""Simulated CUDA device in host memory for torch: streams, graphs, pinned memory, no speed.

For machines without a card. Code that uses `cuda` runs as it would there, with the same values. Anything that a
card would refuse, or occasionally get wrong, raises an error: tensors of two devices; a capture that waits for the
device or draws from a generator that its graph does not know; a stream that reads data another one may still be
writing; memory that is freed while another stream reads it; pinned memory that the host reads before it has arrived
or overwrites before it has been read.

`library` must be imported before torch; `simulation.install` then makes torch find the device. The pytest plugin
does both, also for the processes that tests start. Not simulated: cuDNN, NCCL, several devices, and rounding that
differs between kernels of CUDA and of the host.
"""
