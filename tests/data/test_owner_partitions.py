"""Partitions by the owners of samples."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.data.owner_partitions import ByKeyPartition, DomainPartition
from tests.data.test_size_skew import dataset

properties = settings(max_examples=40)


@given(clients=st.integers(1, 9), owners=st.integers(1, 5), seed=st.integers(0, 99))
@properties
def test_a_client_of_a_domain_holds_an_even_part_of_it(clients: int, owners: int, seed: int) -> None:
    whole = dataset(60, 20, owners)
    data = DomainPartition(kind="domain", clients=clients).divide(whole, seed)
    assert whole.keys is not None
    assert data.owners is not None
    held = [data.rows(client).numpy() for client in range(clients)]
    domains = [set((part % owners).tolist()) for part in held]
    assert all(len(domain) == 1 for domain in domains)
    assert len(set.union(*domains)) == min(clients, owners)
    tested = data.dataset.test.features[:, 0].numpy().astype(int) - 60
    for domain in set.union(*domains):
        mine = [client for client in range(clients) if domains[client] == {domain}]
        parts = [set(held[client].tolist()) for client in mine]
        assert set.union(*parts) == set(range(domain, 60, owners))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        tests = [set(tested[data.owners == client].tolist()) for client in mine]
        assert set.union(*tests) == set(range(domain, 20, owners))
        assert sum(map(len, tests)) == len(range(domain, 20, owners))


def test_as_many_clients_as_domains_hold_what_by_key_gives_them() -> None:
    whole = dataset()
    by_domain = DomainPartition(kind="domain", clients=3).divide(whole, 0)
    by_key = ByKeyPartition(kind="by_key", clients=3).divide(whole, 0)
    held = [
        {tuple(sorted(data.rows(client).tolist())) for client in range(3)} for data in (by_domain, by_key)
    ]
    assert held[0] == held[1]
