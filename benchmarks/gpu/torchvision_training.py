"""Measures a training of a detector of torchvision, on one batch that is on the device.

Its interpreter needs torchvision, and nothing of this product.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict

import torch
import torchvision

from benchmarks.gpu.case import (
    BFLOAT16,
    FLOAT16,
    TF32,
    TWO_STAGE_SIZE,
    Case,
    Clock,
    Plan,
    main,
)

TYPES = {FLOAT16: torch.float16, BFLOAT16: torch.bfloat16}
SIZES = {"ssd300_vgg16": (300, 300), "ssdlite320_mobilenet_v3_large": (320, 320)}
NUM_CLASSES, NUM_BOXES = 91, 8


def measure(case: Case, plan: Plan) -> Dict[str, float]:
    """Speed and memory of a training."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = case.precision == TF32
    torch.backends.cudnn.allow_tf32 = case.precision == TF32
    torch.backends.cudnn.benchmark = True  # TensorFlow does so by default
    clock = Clock(plan)
    clock.start()
    size = SIZES.get(case.model, TWO_STAGE_SIZE)
    resizer = {} if case.model in SIZES else {"min_size": size[0], "max_size": size[1]}
    make = getattr(torchvision.models.detection, case.model)
    model = make(weights=None, weights_backbone=None, num_classes=NUM_CLASSES, **resizer)
    model = model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=case.precision == FLOAT16)
    images, targets = _batch(case.batch_size, size, device)
    enough = False
    while not enough:
        with _autocast(case, device):
            loss = sum(model(images, targets).values())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        loss.item()  # waits for the step, as this product's hooks do
        enough = clock.tick()
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return {**clock.figures(case), "memory_gb": memory / 1e9}


def _batch(batch_size: int, size: Any, device: Any) -> Any:
    images = torch.rand(batch_size, 3, *size, device=device)
    corners = torch.rand(batch_size, NUM_BOXES, 2) * 0.5
    sides = torch.tensor([size[1], size[0], size[1], size[0]])
    boxes = (torch.cat([corners, corners + 0.4], dim=2) * sides).to(device)
    labels = torch.randint(1, NUM_CLASSES, (batch_size, NUM_BOXES)).to(device)
    targets = [{"boxes": each, "labels": label} for each, label in zip(boxes, labels)]
    return list(images), targets


def _autocast(case: Case, device: Any) -> Any:
    if case.precision not in TYPES:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=TYPES[case.precision])


if __name__ == "__main__":
    main(measure)
