"""fair: every client gets the same service."""

from collections.abc import Iterator
from itertools import islice

from attrs import evolve, frozen

from nanofn.policy.ranked import ranked
from nanofn.policy.waiting_index import WaitingIndex
from nanofn.request import SequenceId
from nanofn.state.decision import Decision
from nanofn.state.effects import Finished, Started, TokensCommitted
from nanofn.state.persistent import Map
from nanofn.state.view import SequenceView, View


@frozen
class Service:
    """What each client has got.

    Attributes:
        received: Client to charge.
        floor: Least charge of the clients that had work last time. One that comes back starts there, without old credit.
        clients: Running sequence to client: a result may be told of together with its sequence's end.
        waiting: Waiting sequences by client.
    """

    received: Map[str, int] = Map()
    floor: int = 0
    clients: Map[SequenceId, str] = Map()
    waiting: WaitingIndex = WaitingIndex()


@frozen
class Fair:
    """Serve the client first that has got least: virtual token counters (Sheng et al. 2024, arXiv:2401.00588).

    A prompt is charged when it starts, an output token when it is committed. Within a client, order of arrival.
    Liveness: the gap between two clients that always have work stays within one batch's charge, so none starves.

    Attributes:
        prompt_weight: Charge for a prompt token that was computed.
        output_weight: Charge for an output token.
        init: Nobody has got anything.
    """

    prompt_weight: int = 1
    output_weight: int = 2
    init: Service = Service()

    def decide(self, policy_state: Service, view: View) -> tuple[Service, Decision]:
        """Choose whom to run: see the class."""
        service = self._charged(policy_state, view)
        waiting = service.waiting.updated(view, lambda each: (each.client, each.sequence_id))
        due = {client: max(service.received.get(client) or 0, service.floor) for client in _clients(waiting)}
        service = evolve(service, waiting=waiting, floor=min(due.values(), default=service.floor))
        order = (*view.running, *islice(self._in_turn(waiting, due, view), view.limits.max_num_seqs))
        return service, Decision(ranked(view, order, watermark=1))

    def _charged(self, service: Service, view: View) -> Service:
        """Charge for what happened since the last decision."""
        received, clients = service.received, service.clients
        for effect in view.news:
            charges: list[tuple[SequenceId, int]] = []
            if isinstance(effect, Started):
                each = view.running.get(effect.sequence_id) or view.waiting.get(effect.sequence_id)
                if each is not None:
                    clients = clients.set(each.sequence_id, each.client)
                    computed = max(each.num_prompt_tokens - effect.num_cached_tokens, 0)
                    charges = [(each.sequence_id, computed * self.prompt_weight)]
            elif isinstance(effect, TokensCommitted):
                charges = [(sequence_id, self.output_weight) for sequence_id in effect.sequence_ids]
            elif isinstance(effect, Finished):
                clients = clients.discard(effect.sequence_id)
            for sequence_id, charge in charges:
                client = clients.get(sequence_id)
                if client is not None:
                    received = received.set(client, max(received.get(client) or 0, service.floor) + charge)
        return evolve(service, received=received, clients=clients)

    def _in_turn(self, waiting: WaitingIndex, due: dict[str, int], view: View) -> Iterator[SequenceView]:
        """Take the next of the client that has got least, as if each one taken were charged for its prompt."""
        charges, queues = dict(due), {client: waiting.order.starting((client, SequenceId(-1))) for client in due}
        while charges:
            client = min(charges, key=lambda each: (charges[each], each))
            (owner, _), number = next(queues[client], (("", 0), None))
            each = None if number is None else view.waiting.get(number)
            if each is None or owner != client:
                charges = {other: charge for other, charge in charges.items() if other != client}
            else:
                charges[client] += each.num_prompt_tokens * self.prompt_weight
                yield each


def _clients(waiting: WaitingIndex) -> Iterator[str]:
    """List the clients that have somebody waiting, skipping from the first of one to the first of the next."""
    first = next(waiting.order.starting(("", SequenceId(-1))), None)
    while first is not None:
        client = first[0][0]
        yield client
        first = next(waiting.order.starting((client, SequenceId(1 << 62))), None)


fair = Fair()
"""An output token costs as much as two prompt tokens, as in the paper."""
