"""The cart: an entity whose operations are the shop's rules."""

from __future__ import annotations

from decimal import Decimal

from pydantic import BaseModel, Field

from harvest import ApplicationError, RetryPolicy, activity, entity


class Line(BaseModel):
    sku: str = Field(min_length=1, max_length=40)
    quantity: int = Field(gt=0, le=99)
    price: Decimal = Field(ge=0, max_digits=10, decimal_places=2)


class CartState(BaseModel):
    lines: list[Line] = []
    status: str = "open"
    receipt: str = ""


class Closed(ApplicationError):
    """The cart has been checked out."""


class Empty(ApplicationError):
    """There is nothing to check out."""


@activity.defn(retry=RetryPolicy(max_attempts=3))
async def charge(key: str, amount: Decimal) -> str:
    """Takes the money; the idempotency key of the attempt is what a payment provider would be given."""
    return f"{key}-{amount}-{activity.info().idempotency_key[-6:]}"


@entity.defn(indexes=["status"])
class Cart:
    state: CartState

    @entity.operation(raises=(Closed,))
    def add(self, line: Line) -> int:
        """The number of lines. A line of the same article and price is made larger."""
        self._check_open()
        for known in self.state.lines:
            if (known.sku, known.price) == (line.sku, line.price):
                known.quantity = min(99, known.quantity + line.quantity)
                return len(self.state.lines)
        self.state.lines.append(line)
        return len(self.state.lines)

    @entity.operation(raises=(Closed,))
    def remove(self, sku: str) -> int:
        """How many lines went."""
        self._check_open()
        left = [line for line in self.state.lines if line.sku != sku]
        gone, self.state.lines = len(self.state.lines) - len(left), left
        return gone

    @entity.operation(raises=(Closed, Empty))
    async def check_out(self) -> str:
        """Charges the total; the cart is closed once the money is there."""
        self._check_open()
        if not self.state.lines:
            raise Empty("the cart is empty")
        self.state.receipt = await charge(entity.info().key, self.total())
        self.state.status = "paid"
        return self.state.receipt

    @entity.query
    def total(self) -> Decimal:
        return sum((line.price * line.quantity for line in self.state.lines), Decimal(0))

    def _check_open(self) -> None:
        if self.state.status != "open":
            raise Closed(f"cart {entity.info().key} is {self.state.status}")
