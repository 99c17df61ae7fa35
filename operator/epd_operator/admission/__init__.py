"""What `kubectl apply` is refused for: the rules of `engines` as ValidatingAdmissionPolicies, without a webhook.

The tricky idea: the API server reports one failed validation, and a user wants to hear of everything at once. So every
rule is a text that is empty while the rule holds, all of them are one list, and a single validation asks that the list
be empty; its message is the list.

A policy never guesses: where it cannot see what a rule asks for, it lets the spec pass and the controller refuses it.
"""
