package httpapi

import (
	"net/http"
	"slices"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/access"
	"pulse/schema/apiv1"
)

// createToken is POST /v1/tokens. The token is made here and answered once: the
// cluster keeps its hash. A caller gives what an admin of it may give.
func createToken(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	asked, refusal := apiv1.DecodeToken(body)
	if refusal != nil {
		return refusal
	}
	if !e.who.Grants.Cover(asked.Grants) {
		return e.refuse(schema.Errorf(schema.Forbidden, "an admin gives rights in its own namespaces alone, and the caller has %v", e.who.Grants.Strings()))
	}
	token := access.NewToken()
	c := e.command(newIDs(1), asked.Content())
	c.Namespace = ""
	create := &pb.CreateToken{TokenId: token.ID[:], SecretHash: token.Hash(), Name: asked.Name, ExpiresAtUs: int64(asked.ExpiresAt)}
	for _, g := range asked.Grants {
		create.Grants = append(create.Grants, &pb.TokenGrant{Role: string(g.Role), Namespace: g.Namespace, Queues: g.Queues})
	}
	c.Body = &pb.Command_CreateToken{CreateToken: create}
	result, err := e.submit(c)
	if err != nil {
		return err
	}
	out := shapeToken(result.GetToken())
	if !result.GetReplayed() { // of a repeat nobody has the secret any more
		out.Token = token.Reveal()
	}
	return e.answerShapeAs(http.StatusCreated, out)
}

// token reads the token of the path, if the caller may know of it: what it gives
// rights in decides, not what the caller says of it.
func (e *exchange) token(read func(*pb.Query) (*pb.Answer, error)) (*pb.TokenRow, error) {
	answer, err := read(&pb.Query{Body: &pb.Query_ReadTokens{ReadTokens: &pb.ReadTokens{TokenIds: [][]byte{e.id[:]}}}})
	if err != nil {
		return nil, err
	}
	for _, row := range answer.GetTokens().GetTokens() {
		if e.who.Grants.Cover(grantsOf(row)) {
			return row, nil
		}
	}
	return nil, schema.Errorf(schema.NotFound, "no such token")
}

func grantsOf(row *pb.TokenRow) access.Grants {
	var out access.Grants
	for _, g := range row.GetGrants() {
		out = append(out, access.Grant{Role: access.Role(g.Role), Namespace: g.Namespace, Queues: g.Queues})
	}
	return out
}

// getToken is GET /v1/tokens/{id}.
func getToken(e *exchange) error {
	row, err := e.token(e.read)
	if err != nil {
		return err
	}
	return e.answerShape(shapeToken(row))
}

// revokeToken is POST /v1/tokens/{id}:revoke.
func revokeToken(e *exchange) error {
	if err := e.noBody(); err != nil {
		return err
	}
	if _, err := e.token(e.ask); err != nil {
		return err
	}
	c := e.command(newIDs(1), apiv1.TargetContent("pulse.token.revoke", e.id.String(), 0))
	c.Namespace = ""
	c.Body = &pb.Command_RevokeToken{RevokeToken: &pb.RevokeToken{TokenId: e.id[:]}}
	result, err := e.submit(c)
	if err != nil {
		return err
	}
	return e.answerShape(shapeToken(result.GetToken()))
}

// listTokens is GET /v1/tokens: those that give rights in the caller's namespaces
// alone, by id.
func listTokens(e *exchange) error {
	answer, err := e.read(&pb.Query{Body: &pb.Query_ListTokens{ListTokens: &pb.ListTokens{
		Limit: uint32(e.query.limit(pageMax)), After: e.query.cursor(cursorTokens, ""),
	}}})
	if err != nil {
		return err
	}
	out := TokenList{Tokens: []Token{}}
	for _, row := range answer.GetTokens().GetTokens() {
		if e.who.Grants.Cover(grantsOf(row)) {
			out.Tokens = append(out.Tokens, shapeToken(row))
		}
	}
	if next := answer.GetTokens().GetNextAfter(); len(next) > 0 {
		out.NextCursor = newCursor(cursorTokens, "", next)
	}
	return e.answerShape(out)
}

func shapeToken(row *pb.TokenRow) Token {
	id, _ := idOf(row.GetId())
	out := Token{
		ID: ID(id.String()), Name: row.GetName(), Grants: shapeGrants(grantsOf(row)), CreatedAt: Time(row.GetCreatedAtUs()), CreatedBy: row.GetCreatedBy(),
		RevokedBy: row.GetRevokedBy(), ExpiresAt: optTime(row.GetExpiresAtUs()), RevokedAt: optTime(row.GetRevokedAtUs()), UsedAt: optTime(row.GetUsedAtUs()),
	}
	return out
}

func optTime(us int64) *Time {
	if us == 0 {
		return nil
	}
	t := Time(us)
	return &t
}

func shapeGrants(grants access.Grants) []Grant {
	out := make([]Grant, 0, len(grants))
	for _, g := range grants {
		out = append(out, Grant{Role: string(g.Role), Namespace: g.Namespace, Queues: g.Queues})
	}
	return out
}

// getCaller is GET /v1/caller: in whose name a request speaks, and what it may do.
func getCaller(e *exchange) error {
	out := Caller{Principal: e.who.Principal, Grants: shapeGrants(e.who.Grants)}
	namespace := e.query.get("namespace")
	if err := e.query.err(); err != nil {
		return err
	}
	if namespace != "" {
		out.Methods = []string{}
		for id, rule := range access.HTTP {
			if rule.Permission != access.Open && rule.Allows(e.who.Grants, namespace, "") == nil {
				out.Methods = append(out.Methods, id)
			}
		}
		slices.Sort(out.Methods)
	}
	return e.answerShape(out)
}
