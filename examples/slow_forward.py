"""Inference that does not use its processors; docs/system.md finds out why."""

import os

import torch

THREADS = int(os.environ.get("THREADS", "8"))


def main() -> None:
    """Run the program."""
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).eval()
    batch = torch.randn(512, 256)
    with torch.inference_mode():
        for _ in range(500):
            model(batch)


if __name__ == "__main__":
    main()
