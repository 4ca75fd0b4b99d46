"""Scripts that call their networks, or update them, as few others do, and what a capture of each must find."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tests.support.stranger import Stranger, conv

UNUSUAL_STRANGERS: Mapping[str, Stranger] = MappingProxyType(
    {
        # Every state is a row without a batch; the steps of an episode are learned from together.
        "policy_gradient": Stranger(
            source="""
                import torch
                from torch import nn

                def make():
                    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2)), (torch.randn(3, 4),), {}

                if __name__ == "__main__":
                    policy = make()[0]
                    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
                    for episode in range(100):
                        state, logs = torch.zeros(4), []
                        for move in range(20):
                            choices = torch.distributions.Categorical(logits=policy(state))
                            action = choices.sample()
                            logs.append(choices.log_prob(action))
                            state = state + torch.randn(4) * (1 if action.item() else -1)
                        loss = -(torch.stack(logs) * torch.randn(20)).sum()
                        optimizer.zero_grad(); loss.backward(); optimizer.step()
                """,
            settings=(20, "adam", "fp32", 1),
        ),
        # Two passes over the same samples, with the weights moved on between them, by an optimizer around another one.
        "sharpness_aware": Stranger(
            source="""
                import torch
                from torch import nn

                class Aware(torch.optim.Optimizer):
                    def __init__(self, parameters, base, **settings):
                        super().__init__(parameters, settings)
                        self.base = base(self.param_groups, **settings)

                    @torch.no_grad()
                    def climb(self):
                        for each in self.param_groups[0]["params"]:
                            self.state[each]["moved"] = 0.05 * each.grad.sign()
                            each.add_(self.state[each]["moved"])
                        self.zero_grad()

                    @torch.no_grad()
                    def descend(self):
                        for each in self.param_groups[0]["params"]:
                            each.sub_(self.state[each]["moved"])
                        self.base.step(); self.zero_grad()

                def make():
                    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), (torch.randn(4, 64),), {}

                if __name__ == "__main__":
                    net = make()[0]
                    optimizer = Aware(net.parameters(), torch.optim.AdamW, lr=1e-3)
                    for step in range(100):
                        x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
                        nn.functional.cross_entropy(net(x), y).backward(); optimizer.climb()
                        nn.functional.cross_entropy(net(x), y).backward(); optimizer.descend()
                """,
            settings=(32, "adamw", "fp32", 1),
        ),
        # The batch is one object, and so is the answer; a file of the script hides one of Python's modules.
        "objects_of_own_classes": Stranger(
            source="""
                import pathlib, torch
                from dataclasses import dataclass
                from torch import nn

                class Answer(dict):
                    pass

                @dataclass
                class Batch:
                    x: torch.Tensor
                    y: torch.Tensor

                class Net(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

                    def forward(self, batch, settings):
                        return Answer(scores=self.layers(batch.x) * settings.scale)

                class Settings:
                    scale = 2.0

                pathlib.Path(__file__).with_name("statistics.py").write_text("")
                net = Net()
                optimizer = torch.optim.AdamW(net.parameters())
                for step in range(100):
                    batch = Batch(torch.randn(11, 64), torch.randint(0, 10, (11,)))
                    nn.functional.cross_entropy(net(batch, Settings())["scores"], batch.y).backward()
                    optimizer.step(); optimizer.zero_grad()
                """,
            settings=(11, "adamw", "fp32", 1),
            has_one_network=False,
        ),
        # A slice of a sequence is a new network each time; what is frozen of it is called without gradients.
        "slices_of_a_backbone": Stranger(
            source="""
                import torch
                from torch import nn

                if __name__ == "__main__":
                    backbone = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
                    backbone[:2].requires_grad_(False)
                    head = nn.LazyLinear(5)
                    optimizer = torch.optim.AdamW([*backbone[2:].parameters(), *head.parameters()])
                    for step in range(100):
                        for part in range(3):
                            with torch.no_grad():
                                x = backbone[:2](torch.randn(12, 20))
                            loss = nn.functional.cross_entropy(head(backbone[2:](x)), torch.randint(0, 5, (12,)))
                            (loss / 3).backward()
                        optimizer.step(); optimizer.zero_grad()
                """,
            settings=(36, "adamw", "fp32", 3),
            has_one_network=False,
        ),
        "whole_graph_compiled": Stranger(
            source=conv(
                """
                if __name__ == "__main__":
                    net = Net()
                    optimizer = torch.optim.Adam(net.parameters())

                    @torch.compile(mode="reduce-overhead", fullgraph=True)
                    def loss_of(x, y):
                        return nn.functional.cross_entropy(net(x), y)

                    for step in range(100):
                        loss_of(*images(11)).backward()
                        optimizer.step(); optimizer.zero_grad()
                """
            ),
            settings=(11, "adam", "fp32", 1),
        ),
        # Its state takes half of what one copy of the parameters takes: no whole copy, and half of one besides.
        "eight_bit_optimizer": Stranger(
            source=conv(
                """
                class EightBit(torch.optim.Optimizer):
                    def __init__(self, parameters):
                        super().__init__(parameters, {"lr": 1e-3})

                    @torch.no_grad()
                    def step(self, closure=None):
                        for each in self.param_groups[0]["params"]:
                            state = self.state[each]
                            for name in ("mean", "square"):
                                state.setdefault(name, torch.zeros_like(each, dtype=torch.uint8))
                            each -= 1e-3 * each.grad.sign()

                if __name__ == "__main__":
                    net = Net()
                    optimizer = EightBit(net.parameters())
                    for step in range(100):
                        x, y = images(15)
                        nn.functional.cross_entropy(net(x), y).backward()
                        optimizer.step(); optimizer.zero_grad()
                """
            ),
            settings=(15, "sgd", "fp32", 1),
        ),
        # The loss compares each sample with each other one, and its temperature is learned.
        "contrastive_towers": Stranger(
            source="""
                import torch
                from torch import nn

                class Alike(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.scale = nn.Parameter(torch.tensor(2.6))

                    def forward(self, a, b):
                        return nn.functional.cross_entropy(self.scale.exp() * a @ b.t(), torch.arange(len(a)))

                class Both(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.first, self.second = nn.Linear(40, 16), nn.Linear(24, 16)

                    def forward(self, a, b):
                        return self.first(a), self.second(b)

                def make():
                    return Both(), (torch.randn(4, 40), torch.randn(4, 24)), {}

                if __name__ == "__main__":
                    both, alike = Both(), Alike()
                    optimizer = torch.optim.AdamW([*both.parameters(), *alike.parameters()])
                    for step in range(100):
                        loss = alike(both.first(torch.randn(18, 40)), both.second(torch.randn(18, 24)))
                        optimizer.zero_grad(); loss.backward(); optimizer.step()
                """,
            settings=(18, "adamw", "fp32", 1),
        ),
        "weights_in_a_dictionary": Stranger(
            source="""
                import torch
                from torch import nn
                from torch.func import functional_call

                def make():
                    torch.manual_seed(0)
                    return nn.Sequential(nn.Linear(30, 50), nn.ELU(), nn.Linear(50, 2)), (torch.randn(4, 30),), {}

                if __name__ == "__main__":
                    net, _, _ = make()
                    weights = {name: each.detach().clone().requires_grad_() for name, each in net.named_parameters()}
                    optimizer = torch.optim.Adamax(weights.values(), lr=0.002)
                    for step in range(100):
                        loss = functional_call(net, weights, (torch.randn(36, 30),)).square().mean()
                        optimizer.zero_grad(); loss.backward(); optimizer.step()
                """,
            settings=(36, "adam", "fp32", 1),
        ),
        "learns_to_learn": Stranger(
            source="""
                import torch
                from torch import nn
                from torch.func import functional_call

                net = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 1))
                names = [name for name, _ in net.named_parameters()]
                optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
                for outer in range(100):
                    total = 0
                    for task in range(3):
                        weights = list(net.parameters())
                        for inner in range(2):
                            x = torch.randn(10, 1)
                            loss = (functional_call(net, dict(zip(names, weights)), (x,)) - x.sin()).square().mean()
                            found = torch.autograd.grad(loss, weights, create_graph=True)
                            weights = [each - 0.01 * slope for each, slope in zip(weights, found)]
                        x = torch.randn(10, 1)
                        total += (functional_call(net, dict(zip(names, weights)), (x,)) - x.sin()).square().mean()
                    optimizer.zero_grad(); total.backward(); optimizer.step()
                """,
            settings=(10, "adam", "fp32", 1),
            has_one_network=False,
        ),
        "gradients_of_samples": Stranger(
            source="""
                import torch
                from torch import nn
                from torch.func import functional_call, grad, vmap

                net = nn.Linear(20, 5)
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

                def loss_of(parameters, x):
                    return functional_call(net, parameters, (x.unsqueeze(0),)).square().sum()

                for step in range(100):
                    parameters = {name: each.detach() for name, each in net.named_parameters()}
                    found = vmap(grad(loss_of), in_dims=(None, 0))(parameters, torch.randn(30, 20))
                    for name, each in net.named_parameters():
                        each.grad = found[name].mean(0)
                    optimizer.step()
                """,
            refusal="inside torch.func",
        ),
        "samples_of_several_lengths": Stranger(
            source="""
                import torch
                from torch import nn

                class Bag(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.words, self.head = nn.Embedding(50, 8), nn.Linear(8, 3)

                    def forward(self, words):
                        return self.head(torch.stack([each.mean(0) for each in self.words(words).unbind()]))

                net = Bag()
                optimizer = torch.optim.Adam(net.parameters())
                for step in range(100):
                    words = [torch.randint(0, 50, (length,)) for length in (3, 5, 7, 9)]
                    words = torch.nested.nested_tensor(words, layout=torch.jagged)
                    nn.functional.cross_entropy(net(words), torch.randint(0, 3, (4,))).backward()
                    optimizer.step(); optimizer.zero_grad()
                """,
            refusal="takes nested tensors",
        ),
        "updates_by_hand": Stranger(
            source="""
                import torch

                weights = torch.randn(9, 3, requires_grad=True)
                for step in range(100):
                    (torch.randn(5, 9) @ weights).square().sum().backward()
                    weights.data -= 0.1 * weights.grad
                    weights.grad = None
                """,
            refusal="no optimizer of torch.optim",
        ),
    }
)
