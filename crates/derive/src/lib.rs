//! `#[derive(Tensors)]`: a struct or an enum whose fields are tensors, plain data, or structures of these, as an argument or a result of a compiled function.
//!
//! The derived code only walks the fields in their order; the meaning of a walk stands with the trait, `oxyfuel::Tensors`. A field marked `#[tensors(skip)]` is no part of it: it is
//! cloned, and a change of it does not lead to another variant.
#![forbid(unsafe_code)]

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Field, Fields, Ident, Index, Result, parse_quote};

/// See the crate's documentation and `oxyfuel::Tensors`.
#[proc_macro_derive(Tensors, attributes(tensors))]
pub fn derive_tensors(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    derive(input)
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}

/// The fields of a struct or of one variant, as patterns and walks.
struct Walk {
    /// `{ a: f0, b: f1 }` or `(f0, f1)` or nothing.
    pattern: TokenStream,
    visits: TokenStream,
    maps: TokenStream,
}

fn derive(mut input: DeriveInput) -> Result<TokenStream> {
    for parameter in input.generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(::oxyfuel::Tensors));
    }
    let (visit, map) = match &input.data {
        Data::Struct(data) => {
            let Walk {
                pattern,
                visits,
                maps,
            } = walk(&data.fields)?;
            (
                quote! { let Self #pattern = self; #visits },
                quote! {
                    let Self #pattern = self;
                    #maps
                    ::core::result::Result::Ok(Self #pattern)
                },
            )
        }
        Data::Enum(data) => {
            let (mut visits, mut maps) = (TokenStream::new(), TokenStream::new());
            for variant in &data.variants {
                let (name, text) = (&variant.ident, variant.ident.to_string());
                let walk = walk(&variant.fields)?;
                let (pattern, visit, map) = (walk.pattern, walk.visits, walk.maps);
                visits.extend(quote! {
                    Self::#name #pattern => {
                        visitor.constant(::oxyfuel::structure::Constant::Tag(#text));
                        #visit
                    }
                });
                maps.extend(quote! {
                    Self::#name #pattern => {
                        #map
                        ::core::result::Result::Ok(Self::#name #pattern)
                    }
                });
            }
            if data.variants.is_empty() {
                return Err(Error::new(Span::call_site(), "an enum without variants"));
            }
            (
                quote! { match self { #visits } },
                quote! { match self { #maps } },
            )
        }
        Data::Union(_) => {
            return Err(Error::new(
                Span::call_site(),
                "a union has no fields that can be walked: derive Tensors for a struct or an enum",
            ));
        }
    };
    let name = &input.ident;
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    Ok(quote! {
        impl #generics ::oxyfuel::Tensors for #name #arguments #bounds {
            fn visit<'tensors>(&'tensors self, visitor: &mut dyn ::oxyfuel::structure::Visitor<'tensors>) {
                #visit
            }

            fn map(&self, mapper: &mut dyn ::oxyfuel::structure::Mapper) -> ::oxyfuel::Result<Self> {
                #map
            }
        }
    })
}

fn walk(fields: &Fields) -> Result<Walk> {
    let (mut names, mut visits, mut maps) = (Vec::new(), TokenStream::new(), TokenStream::new());
    for (number, field) in fields.iter().enumerate() {
        let binding: Ident = format_ident!("field_{number}");
        names.push(match &field.ident {
            Some(name) => quote! { #name: #binding },
            None => quote! { #binding },
        });
        if is_skipped(field)? {
            visits.extend(quote! { let _ = #binding; });
            maps.extend(quote! { let #binding = ::core::clone::Clone::clone(#binding); });
            continue;
        }
        let step = match &field.ident {
            Some(name) => {
                let text = name.to_string();
                let text = text.trim_start_matches("r#");
                quote! { ::oxyfuel::structure::Step::Field(#text) }
            }
            None => {
                let index = Index::from(number);
                quote! { ::oxyfuel::structure::Step::Index(#index) }
            }
        };
        visits.extend(quote! { ::oxyfuel::structure::visit_field(#step, #binding, visitor); });
        maps.extend(
            quote! { let #binding = ::oxyfuel::structure::map_field(#step, #binding, mapper)?; },
        );
    }
    let pattern = match fields {
        Fields::Named(_) => quote! { { #(#names),* } },
        Fields::Unnamed(_) => quote! { ( #(#names),* ) },
        Fields::Unit => TokenStream::new(),
    };
    Ok(Walk {
        pattern,
        visits,
        maps,
    })
}

fn is_skipped(field: &Field) -> Result<bool> {
    let mut skipped = false;
    for attribute in &field.attrs {
        if attribute.path().is_ident("tensors") {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("skip") {
                    skipped = true;
                    return Ok(());
                }
                Err(meta.error("the only attribute is #[tensors(skip)]"))
            })?;
        }
    }
    Ok(skipped)
}
