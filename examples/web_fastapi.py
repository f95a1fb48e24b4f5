"""Orders of a web service go to a topic, and a page shows the last ones: FastAPI, ``fastlog.aio`` and ``fastlog.scan``.

``pip install fastapi uvicorn pyarrow``, then ``FASTLOG=localhost:9092 uvicorn --app-dir examples web_fastapi:app``. An
order is answered when the broker has it on its disk; while no broker answers, the customer is told so.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import fastapi
from pydantic import BaseModel

import fastlog

BROKER = os.environ.get("FASTLOG", "localhost:9092")
TOPIC = os.environ.get("FASTLOG_TOPIC", "orders")


class Order(BaseModel):
    """What a customer sends."""

    customer: str
    item: str
    pieces: int = 1


@asynccontextmanager
async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
    """One producer for each process of the server: it is made after the fork, and closed before the end."""
    async with fastlog.aio.Producer(BROKER, acks="flushed", delivery_timeout_ms=5000) as producer:
        app.state.producer = producer
        yield


app = fastapi.FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place_order(order: Order, request: fastapi.Request) -> dict[str, int]:
    """Publish it. The orders of one customer are in one partition, so they keep their order."""
    try:
        (delivery,) = await request.app.state.producer.send_and_wait(
            TOPIC, order.model_dump_json().encode(), key=order.customer
        )
    except fastlog.FastlogError as error:
        raise fastapi.HTTPException(503, f"the order was not taken: {error}") from error
    return {"partition": delivery.partition, "offset": delivery.offset}


@app.get("/orders/last")
def last_orders(count: int = 10) -> list[Order]:
    """The last orders of each partition. It waits for the broker, so FastAPI runs it in a thread."""
    try:
        rows = fastlog.scan(TOPIC, broker=BROKER, columns=["payload"], timeout=5).tail(count)
    except fastlog.FastlogError as error:
        raise fastapi.HTTPException(503, str(error)) from error
    return [Order.model_validate_json(payload) for payload in rows.to_arrow()["payload"].to_pylist()]
