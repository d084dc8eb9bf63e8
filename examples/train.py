"""Train a small convolutional network on random images; the tutorial profiles this script."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = torch.rand(3840, 3, 32, 32), torch.randint(10, (3840,))
loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)

network = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(2048, 10),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)

for batch, target in loader:
    optimizer.zero_grad()
    loss = criterion(network(batch), target)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.2f}")
