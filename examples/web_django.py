"""Orders of a Django site become events in a topic: none is lost, and none is told of that was rolled back.

An order and its event are rows of one transaction, so there is both or neither. ``python examples/web_django.py relay``
sends the events and deletes what the broker has on its disk. One that is killed in between sends some again: their
header ``event`` tells them apart.

``pip install django``; ``FASTLOG`` is the broker, ``DATABASE`` a file of SQLite. ``fastlog topics create orders
--format records``, then ``python examples/web_django.py migrate``, ``runserver`` and ``relay``.
"""

import json
import os
import sys
import time
from collections.abc import Callable

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application

import fastlog

BROKER = os.environ.get("FASTLOG", "localhost:9092")
TOPIC = os.environ.get("FASTLOG_TOPIC", "orders")

settings.configure(
    SECRET_KEY=os.environ.get("SECRET_KEY", "not a secret: this is an example"),
    ALLOWED_HOSTS=["localhost", "testserver"],
    ROOT_URLCONF=__name__,
    USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("DATABASE", "shop.sqlite")}},
)
django.setup()

from django.db import connection, models, transaction  # noqa: E402
from django.http import HttpRequest, JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django.views.decorators.csrf import csrf_exempt  # noqa: E402
from django.views.decorators.http import require_POST  # noqa: E402


class Order(models.Model):
    """An order."""

    customer = models.CharField(max_length=100)
    pieces = models.PositiveIntegerField()

    class Meta:
        app_label = "shop"


class Event(models.Model):
    """What is to be told of: the outbox."""

    key = models.CharField(max_length=100)
    body = models.JSONField()

    class Meta:
        app_label = "shop"


@csrf_exempt
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """Store the order and its event. No broker is needed for that."""
    told = json.loads(request.body)
    with transaction.atomic():
        order = Order.objects.create(customer=told["customer"], pieces=told["pieces"])
        Event.objects.create(key=order.customer, body={"order": order.pk, "pieces": order.pieces})
    return JsonResponse({"order": order.pk}, status=201)


urlpatterns = [path("orders", place_order)]
application = get_wsgi_application()


def relay_once(producer: fastlog.Producer) -> int:
    """Send the oldest events, in their order; delete those that are on the broker's disk. How many that were.

    The topic is one of record batches, whose records have keys and headers.
    """
    events = list(Event.objects.order_by("pk")[:500])
    if not events:
        return 0
    producer.send(
        [
            fastlog.ProducerData(TOPIC, event.key, json.dumps(event.body).encode(), headers={"event": str(event.pk)})
            for event in events
        ]
    )
    return Event.objects.filter(pk__in=[event.pk for event in events]).delete()[0]


def relay(has_ended: Callable[[], bool] = lambda: False) -> None:
    """Send events as they come, for ever; while there is no broker they wait in the database."""
    with fastlog.Producer(BROKER, acks="flushed") as producer:
        while not has_ended():
            try:
                sent = relay_once(producer)
            except fastlog.FastlogError as error:
                print(f"events wait: {error}", file=sys.stderr)
                sent = 0
            if not sent:
                time.sleep(0.5)


def migrate() -> None:
    """Make the tables. A site of your own has migrations for that."""
    with connection.schema_editor() as editor:
        editor.create_model(Order)
        editor.create_model(Event)


if __name__ == "__main__":
    if sys.argv[1:] == ["relay"]:
        relay()
    elif sys.argv[1:] == ["migrate"]:
        migrate()
    else:
        from django.core.management import execute_from_command_line

        execute_from_command_line(sys.argv)
