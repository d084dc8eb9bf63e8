"""Training that waits for its data; docs/system.md finds out why."""

import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

SIZE, PIECE = 128 * 1024, 16  # bytes of a sample, and of each read


class Files(Dataset[torch.Tensor]):
    """A file for each sample, read in small pieces."""

    def __init__(self, folder: Path) -> None:
        self.files = [folder / f"{number}.bin" for number in range(600)]
        for file in self.files:
            file.write_bytes(bytes(SIZE))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> torch.Tensor:
        with self.files[number].open("rb", buffering=0) as file:
            pieces = [file.read(PIECE) for _ in range(SIZE // PIECE)]
        return torch.frombuffer(bytearray(b"".join(pieces)), dtype=torch.uint8).float()


def main() -> None:
    """Run the program."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(SIZE, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as folder:
        for batch in DataLoader(Files(Path(folder)), batch_size=10, num_workers=1):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
