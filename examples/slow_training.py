"""Training whose memory comes and goes; docs/system.md finds out why."""

import torch


def main() -> None:
    """Run the program."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 8)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, target = torch.randn(2048, 64), torch.randn(2048, 8)
    for _ in range(25):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), target).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
