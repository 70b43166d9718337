"""Code of users in processes of its own: a trusted side, which has the claim and the credentials,
and a computing side, which has neither.
"""
